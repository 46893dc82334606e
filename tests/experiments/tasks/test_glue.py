"""GLUE: how its rows are encoded, in which order they come, and what is refused."""

import itertools

import pytest

from experiments.data.text.glue_files import TASKS
from experiments.data.text.tokenizer import cut, train_tokenizer
from experiments.tasks import Glue
from tests.experiments.glue_files import HEADERS, WORDS, line_of, write_task
from tests.experiments.tasks.trainers import trainer


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.json'
    train_tokenizer(lambda: [' '.join(WORDS)] * 3, 100).save(str(path))
    return str(path)


def prepared(data, stage='fit', rank=0, world_size=1):
    data.trainer = trainer(rank, world_size)
    data.setup(stage)
    return data


def pop_the_longer(first, second, room):
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return [first, second]


def test_pairs_are_cut_as_bert_cuts_them():
    for lengths in itertools.product(range(8), range(8), range(1, 12)):
        first, second, room = lengths
        expected = pop_the_longer([1] * first, [2] * second, room)
        assert cut([[1] * first, [2] * second], room) == expected, lengths


@pytest.mark.parametrize('task', ['RTE', 'CoLA'])
def test_examples_are_framed_as_the_tokenizer_frames_them(task, tokenizer, tmp_path):
    written = write_task(tmp_path, task)['train']
    data = prepared(Glue(str(tmp_path), task, tokenizer, batch_size=4))
    batch = next(iter(data.train_dataloader()))
    assert batch.selected.numel() == batch.target.numel() == 0
    by_tokens = {}
    for first, second, label in written:
        encoding = data.tokenizer.encode(first, *([second] if task == 'RTE' else []))
        by_tokens[tuple(encoding.ids)] = encoding.type_ids, TASKS[task].classes.index(label)
    for number, (begin, end) in enumerate(zip(batch.ptr[:-1], batch.ptr[1:])):
        segments, label = by_tokens[tuple(batch.tokens[begin:end].tolist())]
        assert batch.segments[begin:end].tolist() == segments
        assert int(batch.label[number]) == label


def order(data, epoch):
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return list(loader.sampler)


def test_order_depends_on_epoch_and_seed_and_processes_share_the_examples(
        tokenizer, tmp_path, monkeypatch):
    write_task(tmp_path, 'CoLA', num_train=20)
    monkeypatch.setenv('PL_GLOBAL_SEED', '1')
    first, again = (prepared(Glue(str(tmp_path), 'CoLA', tokenizer)) for _ in range(2))
    assert order(first, 0) == order(again, 0) != order(first, 1)
    parts = [order(prepared(Glue(str(tmp_path), 'CoLA', tokenizer), rank=rank, world_size=2), 3)
             for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(20))
    before = order(first, 0)
    monkeypatch.setenv('PL_GLOBAL_SEED', '2')
    assert order(first, 0) != before


@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_processes_together_see_every_development_example_once(world_size, tokenizer, tmp_path):
    write_task(tmp_path, 'MNLI', num_dev=7)
    for number in range(2):
        seen = [index for rank in range(world_size)
                for index in prepared(Glue(str(tmp_path), 'MNLI', tokenizer), 'validate', rank,
                                      world_size).val_dataloader()[number].sampler]
        assert sorted(seen) == list(range(7))


RTE_HEADER = '\t'.join(HEADERS['RTE'])


@pytest.mark.parametrize('task, content, match', [
    ('RTE', None, "'path' cannot be read: .*train.tsv"),
    ('RTE', 'index\tsentence1\tlabel\n', "line 1: .*'sentence2' .got index"),
    ('RTE', f'{RTE_HEADER}\n', 'train.tsv.*no'),
    ('RTE', f'{RTE_HEADER}\n0\tA cat.\tA dog.\n', r'line 2: .*\(got 3\)'),
    ('RTE', f'{RTE_HEADER}\n0\tA cat.\t \tentailment\n', "line 2:.*'sentence2'.*got none"),
    ('RTE', f'{RTE_HEADER}\n0\tA\tB\tentailment\n1\tA\tB\tneutral\n', "line 3: .*got 'neutral'"),
    ('RTE', f'{RTE_HEADER}\n0\tA\tB\xff\tentailment\n', 'line 2: not UTF-8'),
    ('CoLA', 'gj04\t1\t\tGood.\nno tabs\n', r'line 2: .*\(got 1\)'),
    ('CoLA', 'gj04\t2\t\tGood.\n', "line 1: expected the label 0 or 1 .got '2'"),
    *(('STS-B', '\t'.join(HEADERS['STS-B']) + f'\n{line_of("STS-B", "A", "B", score)}\n',
       f"line 2: expected a score from 0 to 5 .got '{score}'") for score in ('5.1', 'nan'))])
def test_a_bad_file_is_refused_with_its_name_and_line(task, content, match, tokenizer, tmp_path):
    write_task(tmp_path, task)
    (tmp_path / 'train.tsv').unlink()
    if content is not None:
        (tmp_path / 'train.tsv').write_bytes(content.encode('latin-1'))
    with pytest.raises(ValueError, match=match):
        prepared(Glue(str(tmp_path), task, tokenizer))


@pytest.mark.parametrize('arguments, match', [
    ({'task': 'WNLI'}, "'task' must be one of MNLI, .* .got 'WNLI'"),
    ({'batch_size': 0}, "'batch_size' must be positive"),
    ({'max_length': 3}, "'max_length' must be more than 3, the number of special"),
])
def test_arguments_out_of_range(arguments, match):
    with pytest.raises(ValueError, match=match):
        Glue(**{'path': 'data', 'task': 'RTE', 'tokenizer': 'none.json', **arguments})
