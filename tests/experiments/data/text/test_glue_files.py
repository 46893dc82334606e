"""GLUE's own files: every task, and what real files have in them."""

import pytest

from experiments.data.text.glue_files import TASKS, read_rows, read_test_rows
from tests.experiments.glue_files import HEADERS, line_of, write_task

ALL = ['MNLI', 'QQP', 'QNLI', 'SST-2', 'CoLA', 'STS-B', 'MRPC', 'RTE']


@pytest.mark.parametrize('task', ALL)
def test_rows_are_those_of_the_file(task, tmp_path):
    written = write_task(tmp_path, task)
    for name in ('train', *TASKS[task].dev):
        rows = list(read_rows(tmp_path / f'{name}.tsv', TASKS[task]))
        assert len(rows) == len(written[name])
        for row, (first, second, label) in zip(rows, written[name]):
            assert [text.strip() for text in row.texts] == [first, second][:len(row.texts)]
            assert label == TASKS[task].classes[row.label] if TASKS[task].classes else (
                row.label == float(label))


def test_quotation_marks_unicode_line_ends_and_a_byte_order_mark_are_text_like_any_other(tmp_path):
    header = '\ufeff' + '\t'.join(HEADERS['MRPC'])  # as the real file begins
    texts = [('"An open mark', 'Two "" of them'), ('next\x85line', 'para\u2029graph'),
             ('naïve', '“curly”')]
    (tmp_path / 'train.tsv').write_bytes('\r\n'.join(
        [header, *(line_of('MRPC', *text, '1') for text in texts), '']).encode())
    rows = list(read_rows(tmp_path / 'train.tsv', TASKS['MRPC']))
    assert [row.texts for row in rows] == texts


def test_broken_rows_of_qqp_are_passed_over_and_counted(tmp_path, capsys):
    write_task(tmp_path, 'QQP', num_train=3)
    path = tmp_path / 'train.tsv'
    path.write_text(path.read_text() + '9\t1\t2\tIs this cut?\n'
                    + line_of('QQP', 'Is the other one empty?', '', '0') + '\n')
    assert len(list(read_rows(path, TASKS['QQP']))) == 3
    assert 'rows that lack a sentence: 2' in capsys.readouterr().out


@pytest.mark.parametrize('read', [read_rows, read_test_rows])
def test_an_empty_file_holds_no_rows(read, tmp_path):
    (tmp_path / 'train.tsv').touch()
    with pytest.raises(ValueError, match='train.tsv.*no'):
        list(read(tmp_path / 'train.tsv', TASKS['RTE']))


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    header = '\t'.join([*HEADERS['RTE'], 'label'])
    row = line_of('RTE', 'A train came.', 'It came.', 'entailment') + '\tnot_entailment'
    (tmp_path / 'train.tsv').write_text(f'{header}\n{row}\n')
    with pytest.raises(ValueError, match="train.tsv, line 1:.*'label'"):
        list(read_rows(tmp_path / 'train.tsv', TASKS['RTE']))
