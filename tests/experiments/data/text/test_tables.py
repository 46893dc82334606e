"""Tables that the library datasets reads, without a network."""

import socket
from pathlib import Path

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from huggingface_hub import HfApi

from experiments.data.text.corpus import read_documents
from experiments.data.text.text_table import TextTable, read_texts

# Strings that look like something else, and that no reader takes for it.
ODD = ['NA', '1e5', 'null', '007', '2020-01-01', 'True', 'NaN', '-0']
FEATURES = Features(text=Value('string'), label=ClassLabel(names=['neg', 'pos']))


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError('a socket was opened')
    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.setattr(datasets.config, 'HF_HUB_OFFLINE', True)
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'users')


def reviews(start=0, count=20, label=None):
    return Dataset.from_dict({'text': [f'review {start + i}' for i in range(count)], 'label': [
        i % 2 if label is None else label for i in range(count)]}, FEATURES)


def as_csv(data, path):
    path.write_text('text,label\n' + ''.join(f'{row["text"]},{row["label"]}\n' for row in data))


def as_lines(data, path):
    data.to_json(path)


def as_parquet(data, path):
    data.to_parquet(path)


def saved(data, path):
    data.save_to_disk(path)


FORMS = {'a.csv': as_csv, 'a.jsonl': as_lines, 'a.parquet': as_parquet, 'a': saved}


@pytest.mark.parametrize('name', FORMS)
def test_strings_stay_what_they_are(name, tmp_path, capsys):
    data = Dataset.from_dict({'text': ODD, 'label': ODD, 'id': [*range(len(ODD))]})
    FORMS[name](data.remove_columns('id') if name == 'a.csv' else data, tmp_path / name)
    rows = list(read_texts(tmp_path / name, label='label'))
    assert [(*row.texts, row.label) for row in rows] == list(zip(ODD, ODD))
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f'{tmp_path / name}') and ': 8 ' in line
    assert name == 'a.csv' or "'id': 1" in line.partition('left out')[2]
    assert not (tmp_path / 'users').exists()


@pytest.mark.parametrize('name', ['a.parquet', 'a'])
def test_numbers_of_classes_have_names(name, tmp_path):
    FORMS[name](reviews(), tmp_path / name)
    collection = TextTable(str(tmp_path / name)).read()
    assert collection.classes == ('neg', 'pos')
    assert [len(part) for part in collection.parts.values()] == [16, 2, 2]


def test_splits_are_parts(tmp_path, capsys):
    DatasetDict(train=reviews(), validation=reviews(20), test=reviews(40, label=-1),
                unsupervised=reviews(60)).save_to_disk(tmp_path / 'a')
    parts = TextTable(str(tmp_path / 'a')).read().parts
    assert [document.texts[0] for document in parts['dev']] == [
        f'review {i}' for i in range(20, 40)]
    assert [len(part) for part in parts.values()] == [18, 20, 2]  # the labels of test are secret
    assert "left out: splits 'test', 'unsupervised': 2" in capsys.readouterr().out


def test_tables_in_a_folder_are_parts(tmp_path, capsys):
    for number, name in enumerate(('train', 'val', 'test')):
        as_csv(reviews(20 * number), tmp_path / f'{name}.csv')
    parts = TextTable(str(tmp_path)).read().parts
    assert [part[0].texts[0] for part in parts.values()] == ['review 0', 'review 20', 'review 40']
    as_csv(reviews(), tmp_path / 'dev.csv')
    (tmp_path / 'README').touch()
    TextTable(str(tmp_path)).read()
    assert "left out: files 'README', 'dev.csv': 2" in capsys.readouterr().out
    with pytest.raises(ValueError, match='expected one table .got'):
        read_texts(tmp_path)
    (tmp_path / 'train.csv').unlink()
    with pytest.raises(ValueError, match=f"{tmp_path}: expected a table or split 'train'"):
        TextTable(str(tmp_path)).read()


def test_a_name_is_asked_of_the_hub(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(datasets.config, 'HF_HUB_OFFLINE', False)
    monkeypatch.setattr(HfApi, 'dataset_info', lambda api, name: asked.append(name))
    monkeypatch.setattr(datasets, 'load_dataset', lambda *name: asked.append(name) or DatasetDict(
        train=reviews(), test=reviews(20)))
    assert TextTable('nyu-mll/glue:sst2').read().classes == ('neg', 'pos')
    assert len(list(read_documents('imdb'))) == 20
    assert asked == ['nyu-mll/glue', ('nyu-mll/glue', 'sst2'), 'imdb', ('imdb', None)]
    assert capsys.readouterr().out.startswith(
        'nyu-mll/glue:sst2, train: 20 rows')


@pytest.mark.parametrize('name, match', [
    ('nowhere', "'path' cannot be read: nowhere .*'nowhere' on the Hub.*was looked up"),
    ('nowhere.csv', "'path' cannot be read: nowhere.csv"),
    ('nowhere.parquet', "'path' cannot be read: nowhere.parquet .*No such file"),
    ('../a/nowhere', "'path' must be a table")])
def test_what_is_not_there_is_named(name, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=match) as raised:
        list(read_texts(Path(name)))
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize('change', [
    lambda content: content[:-30], lambda content: content[:20] + bytes(40) + content[60:],
    lambda content: b''])
def test_a_damaged_parquet_is_named(change, tmp_path):
    path = tmp_path / 'a.parquet'
    as_parquet(reviews(), path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match='cannot be read.*a.parquet|a.parquet.*cannot be read'):
        list(read_texts(path))
