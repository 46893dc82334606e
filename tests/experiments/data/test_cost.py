"""Cost of readers: it grows as the input does, and a small file that is packed is no large one."""

from __future__ import annotations

import gzip
import json

import pytest

from experiments.data.listops_files import read_listops
from experiments.data.text.choice_files import WikiHop
from experiments.data.text.corpus import read_documents
from experiments.data.text.glue_files import TASKS, read_rows
from experiments.data.text.question_files import Squad
from experiments.data.text.text_table import TextTable, read_texts
from graphattn.utils import reading
from graphattn.utils.reading import read_lines
from tests.costs import is_linear


def in_file(name, content, read):
    """A reader of a file whose content hangs on the size."""
    def at(folder, size):
        text = content(size)
        (folder / name).write_bytes(gzip.compress(text.encode(), 1) if name.endswith('.gz')
                                    else text.encode())
        return lambda: read(folder / name)
    return at


def lines(row, header=''):
    return lambda size: header + ''.join(row(number) for number in range(size))


def squad(size):
    questions = [{'id': str(i), 'question': 'What?', 'answers': [{'text': 'a', 'answer_start': 0}]}
                 for i in range(size)]
    return json.dumps({'data': [{'paragraphs': [{'context': 'a text', 'qas': questions}]}]})


def hop(size):
    return json.dumps([{'id': '1', 'query': 'is_a x', 'answer': 'a0', 'supports': ['text'] * size,
                        'candidates': [f'a{i}' for i in range(size)]}])


def table(path):
    return TextTable(str(path)).read()


READERS = {  # and how much of it takes a while
    'rows of CSV': (in_file('a.csv', lines(
        lambda i: f'text {i},{i % 9}\n', 'text,label\n'), table), 3000),
    'lines of one row of CSV': (in_file(
        'a.csv', lambda size: 'text,label\n"' + 'a\n' * size + '",1\n',
        lambda path: [*read_texts(path)]), 30_000),
    'JSON lines': (in_file('a.jsonl', lines(
        lambda i: f'{{"text": "text {i}", "label": {i % 9}}}\n'), table), 3000),
    'questions': (in_file('a.json', squad, lambda path: Squad(str(path), str(path)).read()), 2000),
    'choices': (in_file('a.json', hop, lambda path: WikiHop(str(path), str(path)).read()), 8000),
    'rows of GLUE': (in_file('a.tsv', lines(lambda i: f'text {i}\t{i % 2}\n', 'sentence\tlabel\n'),
                             lambda path: list(read_rows(path, TASKS['SST-2']))), 3000),
    'ListOps': (in_file('a.tsv', lines(lambda i: '( [MIN 1 2 ] )\t1\n', 'Source\tTarget\n'),
                        lambda path: read_listops(path, 99)), 2000),
    'a long text': (in_file('a.txt', lambda size: 'This is a text, e.g. of words. ' * size,
                            lambda path: list(read_documents(path))), 2000),
}


@pytest.mark.slow
@pytest.mark.parametrize('reader', READERS)
def test_four_times_the_input_costs_about_four_times_as_much(reader, tmp_path):
    at, size = READERS[reader]
    reads = []
    for times in (1, 4):
        (folder := tmp_path / str(times)).mkdir()
        reads.append(at(folder, times * size))
    assert is_linear(*reads, floor=0.005)


def test_a_small_packed_file_has_a_bound_of_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, 'LINES', 1000)
    (tmp_path / 'a.csv.gz').write_bytes(gzip.compress(b'text,label\n' + b'\n' * 100_000))
    size = (tmp_path / 'a.csv.gz').stat().st_size
    numbers = []
    with pytest.raises(ValueError, match=r'a\.csv\.gz, line .*; decompress.*first'):
        numbers.extend(number for number, _ in read_lines(tmp_path / 'a.csv.gz'))
    assert numbers[-1] == 4 * size + 1000
