"""Reading text, and the corpus that every machine has."""

import json

import pytest
from datasets import Dataset, DatasetDict

from experiments.data.text import corpus
from experiments.data.text.corpus import (
    build_docs,
    english_sentences,
    is_held_out,
    read_documents,
    split_sentences,
)
from experiments.data.text.local_glue import build_local_glue
from experiments.data.text.local_questions import build_local_questions


@pytest.mark.parametrize('text, documents', [
    ('\nOne sentence.\nAnother one. And a third.\n\n\nA second document.\n',
     [['One sentence.', 'Another one.', 'And a third.'], ['A second document.']]),
    ('It was a dark and\nstormy night. The rain\nfell in torrents\n\nexcept at\n'
     'occasional intervals.\n',
     [['It was a dark and stormy night.',
       'The rain fell in torrents except at occasional intervals.']])],
    ids=["a sentence a line, as BERT's", 'wrapped prose, whatever its blank lines'])
def test_documents_of_a_file(text, documents, tmp_path):
    (tmp_path / 'text.txt').write_text(text)
    assert list(read_documents(tmp_path / 'text.txt')) == documents


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    for name in ('b', 'a', 'c/d'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f'{name}.txt').write_text(f'This is {name}.')
    (tmp_path / 'a.md').write_text('Not this.')
    assert list(read_documents(tmp_path)) == [['This is a.'], ['This is b.'], ['This is c/d.']]


@pytest.mark.parametrize('split', [False, True])
def test_a_saved_data_set(split, tmp_path):
    data = Dataset.from_dict({'text': ['One here. Two here.\n\nThree.', '', None, 'Four.'],
                              'other': [1, 2, 3, 4]})
    (DatasetDict(train=data) if split else data).save_to_disk(tmp_path / 'data')
    assert list(read_documents(tmp_path / 'data')) == [['One here.', 'Two here.', 'Three.'],
                                                       ['Four.']]


@pytest.mark.parametrize('make, match', [
    (lambda path: None, 'must be a text file, a folder of'),
    (lambda path: path.mkdir(), 'must be a text file, a folder of'),
    (lambda path: path.write_bytes(b'caf\xe9 au lait. ' * 9), "cannot be read: .*1: not UTF-8"),
    (lambda path: Dataset.from_dict({'body': ['a']}).save_to_disk(path),
     "must have a column 'text' .* with the columns body"),
    (lambda path: DatasetDict(test=Dataset.from_dict({'text': ['a']})).save_to_disk(path),
     "must have a split 'train' .* with the splits test"),
])
def test_what_is_no_corpus(make, match, tmp_path):
    make(tmp_path / 'it')
    with pytest.raises(ValueError, match=f"'corpus' {match}"):
        list(read_documents(tmp_path / 'it'))


@pytest.mark.parametrize('text, sentences', [
    ('One. Two! Three?  Four', ['One.', 'Two!', 'Three?', 'Four']),
    ('Use e.g. Python. It is 3.11 or so.', ['Use e.g. Python.', 'It is 3.11 or so.']),
    ('By J. Smith et al. In 1999.', ['By J. Smith et al. In 1999.']),
    ('"Is it?" (Yes.) no. matter', ['"Is it?"', '(Yes.) no. matter']),
    ('', []),
])
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences
    assert [again for one in sentences for again in split_sentences(one)] == sentences


DOCSTRING = '''Compute the :func:`~package.mean` of an array, see `the guide <https://x.y>`_.

Raised where **nothing** is left. The ``axis`` may be omitted by callers.

Parameters
----------
axis : int, optional
    The axis along which the means are computed.

- First item of a list
  that goes on here.

Example::

    This looks like prose but is code. It must not be read.

.. code-block:: python

    This Is Code Too. Do not read it.

.. note:: foo

   Notes are read as well as text.

>>> This is a doctest of prose.

Args:
    x (int): The number of rows that
        there are in total.

=====  ===================
a      This is a table row.
=====  ===================

Returns x[i] = {a: b} always. See https://example.org for more. lower case is no start.
'''


def test_english_is_told_from_markup_code_and_tables():
    assert english_sentences(DOCSTRING) == [
        'Compute the mean of an array, see the guide.', 'Raised where nothing is left.',
        'The axis may be omitted by callers.', 'The axis along which the means are computed.',
        'First item of a list that goes on here.', 'Notes are read as well as text.',
        'The number of rows that there are in total.']


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A Python with two packages, in place of this one."""
    root = tmp_path / 'python'
    library, packages = root / 'lib', root / 'lib/site-packages'
    files = {
        library / 'module.py': '"""A module of the library. It says two things."""\n'
                               'def f():\n    "It has a function as well."\n    raise SystemExit\n',
        library / 'test/test_it.py': '"""Tests are left out. They say very little."""',
        library / 'broken.py': '"""This cannot be parsed. It is left out."""\ndef',
        packages / 'p/a.py': '"""It has a function as well. This one is new here. And so is '
                             'this one."""',
        packages / 'p/b.py': '"""This one is new here. It has a function as well."""',
        packages / 'p-1.0.dist-info/LICENSE': 'You may use this software. You must keep this.',
        packages / 'q-1.0.dist-info/licenses/LICENSE.txt':
            'You may use this software. You must\nkeep this.',
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(corpus.sysconfig, 'get_paths', lambda: {
        'stdlib': str(library), 'purelib': str(packages), 'platlib': str(packages)})
    return root


def test_documentation_is_collected_once_each(installed, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, 'is_held_out', lambda document: 'software' in document[0])
    counts = build_docs(tmp_path / 'out')
    assert list(read_documents(tmp_path / 'out/train.txt')) == [
        ['A module of the library.', 'It says two things.', 'It has a function as well.'],
        ['This one is new here.', 'And so is this one.']]
    assert list(read_documents(tmp_path / 'out/val.txt')) == [
        ['You may use this software.', 'You must keep this.']]
    assert counts['train'] == {'documents': 2, 'sentences': 5, 'words': 25}
    assert counts['words_of_package'] == {'python': 15, 'p': 10, 'p-1.0.dist-info': 9}
    saved = json.loads((tmp_path / 'out/sources.json').read_text())
    assert saved == counts and (tmp_path / 'out').stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize('build', [build_docs, lambda out: build_local_glue(out, [], 10, 5),
                                   lambda out: build_local_questions(out, [])])
def test_a_folder_with_something_in_it_is_left_alone(build, tmp_path):
    (tmp_path / 'mine.txt').write_text('mine')
    with pytest.raises(ValueError, match="'out' must be a new or empty folder"):
        build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['mine.txt']


def test_what_is_held_out_depends_on_the_text_alone():
    documents = [[f'Sentence {i}.', 'The end.'] for i in range(4000)]
    share = sum(map(is_held_out, documents)) / len(documents)
    assert 0.04 < share < 0.06
    assert not is_held_out(['Sentence 0.', 'The end.'])  # the same on every machine
