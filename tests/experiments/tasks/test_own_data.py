"""Data of the user's: what is read, how it is divided, runs that fit it, and what they predict."""

import csv
import gzip
import json
import shutil
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import experiments
from analysis.command import as_csv
from experiments import cli, predict, train
from experiments.data.byte_text import AanPairs
from experiments.data.image_files import ImageFiles
from experiments.data.labels import stratified
from experiments.data.text.text_table import TextTable
from experiments.data.token_arrays import TokenArrays
from experiments.modules import Classification
from experiments.runs.command import run_or_exit
from experiments.runs.tables import report
from experiments.tasks import LongRange
from graphattn.models import Encoder, PairClassifier
from graphattn.patterns import Full
from graphattn.sources import PatternSource
from tests.experiments.own_files import CLASSES, write_images, write_table, write_tokens

SMALL = {'channels': 8, 'heads': 2, 'num_layers': 1, 'hidden_channels': 8}
ENCODER = '--model.init_args.model.init_args.encoder.init_args'
# The config; what writes a file of its kind, and what that is called; the options that it needs;
# and the sizes of the model that come of it.
KINDS = {
    'text': (write_table, '{}.csv', ['--data.vocab_size', '120'],
             {'num_tokens': 120, 'max_length': 512}, CLASSES),
    'image_folder': (write_images, '{}', [], {'num_tokens': 256, 'max_length': 12},
                     ['dark', 'light']),
    'tokens': (write_tokens, '{}.npz', [], {'num_tokens': 600, 'max_length': 6}, ['0', '1']),
}
kinds = pytest.mark.parametrize('kind', KINDS)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """The folder of each kind: with a run, and without the files that it was trained on."""
    folders = {}
    for kind, (write, name, options, *_) in KINDS.items():
        folder = folders[kind] = tmp_path_factory.mktemp(kind)
        learn, test = (write(folder / name.format(part), seed=seed)
                       for seed, part in enumerate(['mine', 'test']))
        train.main(['fit', '--config', str(cli.CONFIGS / f'{kind}.yaml'), '--data.path', str(learn),
                    '--data.test', str(test), '--trainer.default_root_dir', str(folder / 'run'),
                    '--trainer.max_epochs', '1', '--trainer.accelerator', 'cpu',
                    '--trainer.enable_progress_bar', 'false', *options,
                    *(['--data.cache', str(folder / 'cache')] if kind == 'text' else []),
                    *(part for size, value in SMALL.items()
                      for part in (f'{ENCODER}.{size}', str(value)))])
        learn.rename(folder / 'gone')
    return folders


@pytest.mark.slow
@kinds
def test_a_model_is_as_large_as_the_data_need(kind, runs):
    sizes, classes = KINDS[kind][-2:]
    config = yaml.safe_load((runs[kind] / 'run/config.yaml').read_text())
    model = config['model']['init_args']['model']['init_args']
    assert model['num_classes'] == 2 and config['data']['init_args']['classes'] == classes
    assert sizes.items() <= model['encoder']['init_args'].items()


@pytest.mark.slow
@kinds
def test_what_is_predicted_is_as_right_as_what_was_tested(kind, runs, tmp_path, capsys):
    folder, classes = runs[kind], KINDS[kind][-1]
    out = tmp_path / 'predictions.csv'
    predict.predict(str(folder / 'run'), str(folder / KINDS[kind][1].format('test')), str(out),
                    batch_size=7)
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 40 == len({row['example'] for row in rows})
    texts = ['text'] if kind == 'text' else []
    assert list(rows[0]) == ['example', *texts, 'label', *(f'probability/{n}' for n in classes)]
    assert not texts or rows[0]['text'].startswith('1 0, ')
    for row in rows:
        share = [float(row[f'probability/{name}']) for name in classes]
        assert sum(share) == pytest.approx(1, abs=1e-5)
        assert row['label'] == classes[int(np.argmax(share))]
    if kind == 'image_folder':
        right = [row['example'].startswith(row['label']) for row in rows]
    else:  # classes take turns
        right = [row['label'] == classes[place % 2] for place, row in enumerate(rows)]
    tested = json.loads((folder / 'run/summary.json').read_text())['accuracy']
    assert np.mean(right) == pytest.approx(tested)
    assert '40 examples' in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_another_version_says_what_differs(runs, tmp_path):
    run = shutil.copytree(runs['tokens'] / 'run', tmp_path / 'run')
    summary = json.loads((run / 'summary.json').read_text())
    summary['versions']['graphattn'] = '0.0.1'
    (run / 'summary.json').write_text(json.dumps(summary))
    config = (run / 'config.yaml').read_text()
    for old, new, words in (('share_source:', 'share_sources:', 'share_sources'),
                            ('num_layers: 1', 'num_layers: 2', 'the weights do not fit')):
        (run / 'config.yaml').write_text(config.replace(old, new))
        with pytest.raises(ValueError, match=words) as raised:
            experiments.load_run(run)
        assert 'graphattn 0.0.1 instead of' in str(raised.value)


# Tables ##############################################################################


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == '.gz' else text.encode())
    return path


BAD_TABLES = [
    ('a.jsonl', '{"text": "x", "label": 1}\n{"text": "y"}\n', "line 2: .*'label'"),
    ('a.jsonl', '{"text": 5, "label": 1}\n', "line 1: .*'text'"),
    ('a.csv', 'text,text\nx,1\n', "line 1:.*'text'"),
    ('a.csv', 'text,label\nx,1\ny,1\n', r'classes \(got 1\)'),
    ('a.csv', 'text,label\nx,1\ny,2\n', "files.*'val'.*'test'"),
    ('a.csv', 'text,label\n', 'at least one text'), ('a.csv', '', 'at least one text'),
    ('a.txt', 'x', "'path' must be a table"), ('a.csv', None, "'path' cannot be read")]


@pytest.mark.parametrize('name, text, words', BAD_TABLES)
def test_a_bad_table_is_named(name, text, words, tmp_path):
    if text is not None:
        write(tmp_path / name, text)
    with pytest.raises(ValueError, match=words) as raised:
        TextTable(str(tmp_path / name)).read()
    assert name in str(raised.value)


# Parts ###############################################################################


@pytest.mark.parametrize('held_out', [(), ('dev',), ('dev', 'test')])
def test_parts_have_their_share_of_each_class(held_out):
    label = np.repeat([0, 1, 2], [200, 30, 1])
    keys = np.arange(231)
    parts = stratified(keys, label, held_out, 0, 'mine')
    assert sorted(np.concatenate(list(parts.values()))) == list(range(231))
    for part in held_out:
        assert np.bincount(label[parts[part]]).tolist() == [20, 3]
    again, other = (stratified(keys, label, held_out, seed, 'mine') for seed in (0, 1))
    assert all(np.array_equal(parts[part], again[part]) for part in parts)
    assert not held_out or not np.array_equal(parts['train'], other['train'])


def test_equal_examples_are_in_one_part():
    keys = np.random.default_rng(0).integers(0, 60, 300)
    parts = stratified(keys, np.zeros(300, np.int64), ('dev', 'test'), 0, 'mine')
    own = [set(keys[numbers]) for numbers in parts.values()]
    assert sum(map(len, own)) == 60 and [len(some) for some in own[1:]] == [6, 6]


# Images ##############################################################################


def test_images_of_several_sizes_are_named_unless_they_are_to_have_one(tmp_path):
    folder = write_images(tmp_path / 'images')
    write_images(tmp_path / 'images', 1, shape=(5, 2))
    with pytest.raises(ValueError, match="002.png has 3 x 4 pixels and .*000.png has 5 x 2 "
                                         "pixels; pass 'size'"):
        ImageFiles(str(folder)).read(10**6)
    assert ImageFiles(str(folder), size=(2, 2)).read(10**6).longest == 4


@pytest.mark.parametrize('content, words', [
    (b'', 'cannot be read as an image'), (b'GIF89a', 'cannot be read as an image'),
    (None, r'expected.*image.*8 bits per value \(got mode I;16\)')])
def test_a_bad_image_is_named(content, words, tmp_path):
    folder = write_images(tmp_path / 'images', 4)
    path = folder / 'dark/bad.png'
    if content is None:
        Image.fromarray(np.zeros((3, 4), np.uint16)).save(path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as raised:
        ImageFiles(str(folder)).read(10**6)
    assert str(path) in str(raised.value)


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(ValueError, match='one folder of images for each class'):
        ImageFiles(str(tmp_path)).read(10**6)
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='empty: expected a folder of images'):
        ImageFiles(str(tmp_path)).read(10**6)


# Token ids ###########################################################################


@pytest.mark.parametrize('arrays, words', [
    ({'ids': np.zeros((2, 2), int)}, "array 'tokens'"),
    ({'tokens': np.ones((2, 2), int)}, "array 'label'.*got tokens"),
    ({'tokens': np.ones((2, 2))}, 'got float64'),
    ({'tokens': np.ones(2, int)}, 'got int64 of shape'),
    ({'tokens': np.ones((2, 2), int), 'label': np.zeros(3, int)}, r'labels .* of shape \[2\]'),
    ({'tokens': np.ones((2, 2), int), 'label': np.zeros(2)}, 'labels .*got float64'),
    ({'tokens': np.ones((2, 2), int), 'label': np.array([97, 2**31], 'u4').view('<U1')},
     'label.*valid Unicode'),
    ({'tokens': -np.ones((2, 2), int), 'label': np.zeros(2, int)}, 'got -1'),
    ({'tokens': np.array([[1, 9], [9, 9]]), 'label': np.arange(2)}, 'row 1: .*padding 9'),
    ({'tokens': np.array([[{}]]), 'label': np.arange(2)}, 'cannot be read as NumPy arrays')])
def test_bad_arrays_are_named(arrays, words, tmp_path):
    np.savez(tmp_path / 'a.npz', **arrays)
    with pytest.raises(ValueError, match=words) as raised:
        TokenArrays(str(tmp_path / 'a.npz'), padding=9).read(10)
    assert 'a.npz' in str(raised.value)


def test_labels_beside_ids_are_asked_for_by_their_name(tmp_path):
    np.save(tmp_path / 'a.npy', np.ones((2, 2), int))
    with pytest.raises(ValueError, match='a_label.npy cannot be read .*NAME_label.npy'):
        TokenArrays(str(tmp_path / 'a.npy')).read(10)


# Commands ############################################################################


def one_line(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run_or_exit(command)
    line, = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and line.startswith('error: ')
    return line


@pytest.mark.slow
@pytest.mark.parametrize('kind, options, words', [
    ('text', ['--data.path', 'a.csv', '--data.columns', '[title]'], '(got text, label)'),
    ('text', ['--data.path', 'a.csv', '--data.columns', '[a, b, c]'], "'columns' must contain"),
    ('image_folder', ['--data.path', 'images', '--data.size', '[0, 2]'], "'size' must be two"),
    ('tokens', ['--data.path', 'a.csv'], 'a NumPy file of token ids')])
def test_bad_data_are_one_line(kind, options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / 'a.csv')
    line = one_line(lambda: train.main(['fit', '--config', str(cli.CONFIGS / f'{kind}.yaml'),
                                        *options]), capsys)
    assert words in line, line
    assert not (tmp_path / 'runs').exists()


@pytest.mark.slow
@pytest.mark.parametrize('change, words', [
    ({'run': 'nowhere'}, 'nowhere must be the folder of a run'),
    ({'input': 'nowhere'}, "'input' must be an existing file or folder (got nowhere)"),
    ({'input': 'a.npz', 'batch_size': 0}, "'batch_size' must be at least 1"),
    ({'input': 'large.npz'}, 'large.npz, examples 0 to 1: '),
    ({'input': 'long.npz'}, 'long.npz, examples 0 to 1: '),
    ({'out': '.'}, "'out' must be a file"),
    ({'out': './a.npz'}, "'out' must differ from 'input', which would be overwritten "
     "(got ./a.npz for both)"),
    ({'out': 'a.npz/x.csv'}, "'out' must be a writable folder")])
def test_bad_predictions_are_one_line(change, words, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / 'a.npz')
    np.savez('large.npz', tokens=np.full((2, 3), 600))
    np.savez('long.npz', tokens=np.ones((2, 7), int))
    given = {'run': str(runs['tokens'] / 'run'), 'input': 'a.npz', 'out': 'x.csv'} | change
    line = one_line(lambda: predict.predict(**given), capsys)
    assert words in line, line
    assert not Path('x.csv').exists()


def test_pairs_of_texts_are_predicted_together(tmp_path, capsys):
    torch.manual_seed(0)
    encoder = Encoder(PatternSource(Full()), num_tokens=256, max_length=8, **SMALL)
    module = Classification(PairClassifier(encoder, 2)).eval()
    data = LongRange(AanPairs('nowhere'), max_length=8)
    run = experiments.Run(module, data, {'seed_everything': 0}, None, None)
    pairs = [('rain', 'snow'), ('a text that is cut', 'bread'), ('sun', 'sun')]
    path = tmp_path / 'new.jsonl'
    path.write_text('\n'.join(json.dumps({'text_a': a, 'text_b': b}) for a, b in pairs))
    lines, probability = zip(*predict.predictions(run, path, batch_size=2))
    assert [*chain(*lines)] == ['1', '2', '3']
    assert '1 example cut to 8 tokens' in capsys.readouterr().out
    for values, pair in zip(np.concatenate(probability), pairs):
        sequences = [torch.tensor(list(text.encode()[:8])) for text in pair]
        ptr = torch.tensor([0, *map(len, sequences)]).cumsum(0)
        with torch.no_grad():
            expected = module.model(torch.cat(sequences), ptr).softmax(1)
        np.testing.assert_allclose(values, expected[0], rtol=1e-5)
    path.write_text('{"text": "alone"}')
    with pytest.raises(ValueError, match='new.jsonl, examples 1.*1:.*got 1 seq'):
        list(predict.predictions(run, path))


@pytest.mark.slow
def test_texts_that_are_cut_are_counted(runs, tmp_path, capsys):
    path = tmp_path / 'new.csv'
    path.write_text('text\n' + 'one ' * 600 + '\none\n')
    predict.predict(str(runs['text'] / 'run'), str(path), str(tmp_path / 'out.csv'))
    assert '1 example cut to 512 tokens' in capsys.readouterr().out


FORMULAS = ['=HYPERLINK("http://x")', '+1+1', '-a', '@SUM(A1)', '\t=1', '\r=1']
NO_FORMULAS = ['-1', '+1e5', '1', 'a=b', "'", '', '-inf', 'é']


def test_no_cell_of_what_is_written_is_a_formula(tmp_path, monkeypatch):
    texts = [*FORMULAS, *NO_FORMULAS]
    cells = [f"'{text}" for text in FORMULAS] + NO_FORMULAS
    run = experiments.Run(None, None, {}, None, texts)
    monkeypatch.setattr(predict, 'load_run', lambda folder, trust: run)
    monkeypatch.setattr(predict, 'with_texts', lambda *_: [
        (texts, -np.eye(len(texts))[::-1], [(text,) for text in texts])])
    (tmp_path / 'in').touch()
    predict.predict('run', str(tmp_path / 'in'), str(tmp_path / 'out.csv'))
    with (tmp_path / 'out.csv').open(newline='') as file:
        rows = list(csv.DictReader(file))
    assert [row['example'] for row in rows] == [row['text'] for row in rows] == cells
    assert {row['label'] for row in rows} <= {*cells}
    assert rows[0][f'probability/{texts[-1]}'] == '-1.000000'
    report([{text: text, 'value': -1.5} for text in texts], 'table', tmp_path)
    with (tmp_path / 'table.csv').open(newline='') as file:
        names, *rows = csv.reader(file)
    assert [name for name in names if name != 'value'] == cells
    assert [row[1] for row in rows] == ['-1.5'] * len(rows)
    graph = SimpleNamespace(scalars=lambda: {'value': -1.5}, tokens=lambda names: {})
    first = [line.partition(',')[0].strip('"') for line in
             as_csv({text: [graph] for text in ('=1', '-a', '-1')}).splitlines()]
    assert first == ['graph', "'=1", "'-a", '-1']
