import numpy as np
import pytest
import torch

from experiments.data.byte_text import DocumentBytes, DocumentPairs
from experiments.data.sequences import SequenceData, Sequences, SequenceSource
from experiments.data.text.document_files import Collection, Document, DocumentSource
from experiments.tasks import LongRange
from experiments.tasks.long_range import collate
from graphattn.models import Encoder, PairClassifier, SequenceClassifier
from graphattn.sources import PatternSource
from tests.experiments.tasks.trainers import trainer


class Counting(SequenceSource):
    """Example i is i + 1 times the symbol i, of class i % 2; or a pair of it and of one symbol."""

    def __init__(self, number=7, width=1):
        self.number, self.width = number, width

    def read(self, max_length):
        some = [np.full(min(length, max_length), i, np.uint8) for i in range(self.number)
                for length in (i + 1, 1)[:self.width]]
        part = Sequences.of(some, np.arange(self.number) % 2)
        return SequenceData('counting', self.number, 2, {'train': part, 'dev': part, 'test': part})


class Documents(DocumentSource):
    number = 10

    def read(self):
        some = [Document((f'Größe {i} of class {i % 2}',), i % 2) for i in range(self.number)]
        return Collection(('a', 'b'), {'train': some, 'dev': some, 'test': some})


class Pairs(DocumentSource):
    def read(self):
        some = [Document(('It rains.', 'It is wet.'), 1), Document(('It is on', 'Off.'), 0)]
        return Collection(('a', 'b'), {'train': some, 'dev': some, 'test': some})


def prepared(source, **options):
    task = LongRange(source, **{'max_length': 100, 'batch_size': 3, **options})
    task.trainer = trainer()
    task.setup('fit')
    return task


@pytest.mark.parametrize('part', ['train', 'val', 'test'])
@pytest.mark.parametrize('width', [1, 2])
def test_every_example_comes_once(part, width):
    batches = list(getattr(prepared(Counting(width=width)), f'{part}_dataloader')())
    assert [len(batch.label) for batch in batches] == [3, 3, 1]
    seen = []
    for batch in batches:
        first = batch.tokens[batch.ptr[:-1]].view(-1, width)[:, 0]
        assert (batch.ptr.diff().view(-1, width)[:, 0] == first + 1).all()
        assert (batch.label == first % 2).all() and batch.tokens.dtype == torch.long
        seen += first.tolist()
    assert sorted(seen) == list(range(7))
    if part != 'train':
        assert seen == sorted(seen, reverse=True)


def test_cls_stands_before_each_sequence():
    batch = collate(Counting().read(100).parts['train'].take(np.array([2, 0])), cls_token=7)
    assert batch.tokens.tolist() == [7, 2, 2, 2, 7, 0] and batch.ptr.tolist() == [0, 4, 6]
    task = prepared(Counting(), max_length=3, cls=True)
    batch, *_ = task.test_dataloader()
    assert batch.ptr.diff().max() == 3 and (batch.tokens[batch.ptr[:-1]] == 7).all()


def model(kind=SequenceClassifier, num_classes=2, **sizes):
    sizes = {'num_tokens': 8, 'max_length': 100, 'channels': 4, 'heads': 1, 'num_layers': 1,
             **sizes}
    return kind(Encoder(PatternSource('Full'), **sizes), num_classes)


@pytest.mark.parametrize('made, width, match', [
    (dict(max_length=99), 1, "'max_length' must be at most 99, the number of positions"),
    (dict(num_tokens=7), 1, "'num_tokens' of the encoder must be at least 8, .* symbols"),
    (dict(num_classes=3), 1, "'num_classes' of the model must be 2, the number of .*got 3"),
    (dict(), 2, "'model' must be a PairClassifier for counting"),
    (dict(kind=PairClassifier), 1, "'model' must be a SequenceClassifier for counting"),
])
def test_a_model_for_other_data_is_refused(made, width, match):
    task = LongRange(Counting(width=width), 100, cls=True)
    with pytest.raises(ValueError, match=match):
        task.check_model(model(**made))
    task.check_model(model(PairClassifier if width == 2 else SequenceClassifier))


def test_pairs_that_there_are_stay_pairs():
    part = DocumentBytes(Pairs()).read(9).parts['dev']
    assert part.sequences_per_example == 2 and part.label.tolist() == [1, 0]
    texts = [part.sequence(i).tobytes() for i in range(4)]
    assert texts == [b'It rains.', b'It is wet', b'It is on', b'Off.']
    with pytest.raises(ValueError, match="'documents' must be single texts .*got pairs"):
        DocumentPairs(Pairs()).read(9)


def test_pairs_of_documents_are_of_one_class_or_of_two():
    part = DocumentPairs(Documents(), pairs_each=30).read(100).parts['test']
    assert part.num_sequences == 600 and part.label.mean() == pytest.approx(0.5, abs=0.12)
    for i, label in enumerate(part.label):
        x, y = (part.sequence(2 * i + j).tobytes() for j in range(2))
        assert x != y and (x[-1] == y[-1]) == label
    few = Documents()
    few.number = 2
    with pytest.raises(ValueError, match="'documents' must.*two.*train"):
        DocumentPairs(few).read(100)


def test_a_part_without_examples_is_refused():
    class NoDev(Counting):
        def read(self, max_length):
            data = super().read(max_length)
            data.parts['dev'] = Sequences.of([], [])
            return data

    with pytest.raises(ValueError, match="'source' must.*none.*dev.*counting"):
        prepared(NoDev())
