
import pytest
import torch
from sklearn.datasets import load_digits

from experiments.data.batch import NO_LABEL
from experiments.tasks import Digits, Duplicates, Planted
from experiments.tasks.synthetic import occurs_twice
from tests.experiments.tasks.trainers import trainer


def prepared(task):
    task.trainer = trainer()
    task.setup('fit')
    return task


@pytest.mark.slow
def test_digits_split_is_fixed_stratified_and_disjoint():
    first, again = prepared(Digits()), prepared(Digits())
    parts = [first.train, first.val, first.test]
    assert [len(part) for part in parts] == [1257, 180, 360]
    assert torch.equal(first.test.tensors[0], again.test.tensors[0])
    for part in parts:
        share = torch.bincount(part.tensors[1], minlength=10) / len(part)
        assert share.min() > 0.09 and share.max() < 0.11
    rows = torch.cat([part.tensors[0] for part in parts])
    whole = torch.from_numpy(load_digits().data).long()
    assert torch.equal(rows.unique(dim=0, return_counts=True)[1].sort()[0],
                       whole.unique(dim=0, return_counts=True)[1].sort()[0])


def test_duplicates_example_of_the_paper():
    tokens = torch.tensor([[1, 4, 3, 7, 3, 2, 3, 1]])
    assert occurs_twice(tokens).long().tolist() == [[1, 0, 1, 0, 1, 0, 1, 1]]


def test_duplicates_labels_against_counting():
    batch = prepared(Duplicates(length=10, batch_size=7)).test_dataloader().dataset[0]
    for tokens, labels in zip(batch.tokens.view(7, 10).tolist(), batch.label.view(7, 10).tolist()):
        assert labels == [int(tokens.count(token) > 1) for token in tokens]
        assert set(tokens) <= set(range(1, 11))


def test_duplicates_training_batches_are_fresh_and_evaluation_is_fixed():
    task = prepared(Duplicates(length=16, batch_size=4, steps_per_epoch=3))
    loader = task.train_dataloader()
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        epochs.append(torch.stack([batch.tokens for batch in loader]))
    assert len(torch.cat(epochs).unique(dim=0)) == 6
    first, again = (next(iter(task.val_dataloader())).tokens for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, next(iter(task.test_dataloader())).tokens)


def test_planted_labels_against_counting():
    task = Planted([2, 5], num_symbols=6, length=16, batch_size=7)
    batch = next(iter(prepared(task).train_dataloader()))
    for tokens, label in zip(batch.tokens.view(7, 16).tolist(), batch.label.view(7, 16).tolist()):
        assert tokens[0] == 0 and tokens[-1] == 1 and all(2 <= token < 8 for token in tokens[1:-1])
        assert label[0] == label[-1] == NO_LABEL
        for i in range(1, 15):
            near = [i + d for d in (-5, -2, 2, 5) if 0 <= i + d < 16]
            assert label[i] == (sum(task.value[tokens[j]] for j in near) > 0)


@pytest.mark.parametrize('make, name', [
    (lambda: Digits(batch_size=0), 'batch_size'), (lambda: Duplicates(length=0), 'length'),
    (lambda: Duplicates(steps_per_epoch=-1), 'steps_per_epoch'),
    (lambda: Planted([], length=16), 'distances'), (lambda: Planted([0], length=16), 'distances'),
    (lambda: Planted([14], length=16), 'distances'),
    (lambda: Planted([2], num_symbols=1, length=16), 'num_symbols')])
def test_bad_arguments(make, name):
    with pytest.raises(ValueError, match=f"'{name}' must be"):
        make()
