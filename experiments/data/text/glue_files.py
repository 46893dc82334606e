"""The eight GLUE tasks on sentences or pairs of sentences, from GLUE's files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.data.what_was_read import number_of, readable, tell, unread
from graphattn.utils.reading import filled_lines


@dataclass(frozen=True)
class GlueTask:
    """The columns, labels and metric of a GLUE task.

    Attributes:
        text (tuple): The columns of the one or two sentences.
        label (str): The column of the label.
        classes (tuple): The labels in class order; empty if the label is a score from 0 to 5.
        metric (str): The metric that the papers report.
        dev (tuple): File names of the development sets, without ``.tsv``.
        test (tuple): File names of the test sets, without ``.tsv``.
        columns (tuple): Column names of files without a header.
        has_broken_rows (bool): Whether some rows of the files are known to lack a sentence. Such
            rows are skipped.
    """

    text: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    metric: str
    dev: tuple[str, ...] = ('dev',)
    test: tuple[str, ...] = ('test',)
    columns: tuple[str, ...] = ()
    has_broken_rows: bool = False


BINARY, SENTENCES = ('0', '1'), ('sentence1', 'sentence2')
ENTAILMENT = ('entailment', 'not_entailment')
TASKS = {
    # The order matters: classes 0 and 1 are the two that SBM-Transformer's Table 4 counts.
    'MNLI': GlueTask(SENTENCES, 'gold_label', ('contradiction', 'neutral', 'entailment'),
                     'accuracy', dev=('dev_matched', 'dev_mismatched'),
                     test=('test_matched', 'test_mismatched')),
    'QQP': GlueTask(('question1', 'question2'), 'is_duplicate', BINARY, 'f1',
                    has_broken_rows=True),
    'QNLI': GlueTask(('question', 'sentence'), 'label', ENTAILMENT, 'accuracy'),
    'SST-2': GlueTask(('sentence',), 'label', BINARY, 'accuracy'),
    'CoLA': GlueTask(('sentence',), 'label', BINARY, 'matthews',
                     columns=('source', 'label', 'mark', 'sentence')),
    'STS-B': GlueTask(SENTENCES, 'score', (), 'spearman'),
    'MRPC': GlueTask(('#1 String', '#2 String'), 'Quality', BINARY, 'f1'),
    'RTE': GlueTask(SENTENCES, 'label', ENTAILMENT, 'accuracy'),
}


class Row(NamedTuple):
    """A row of a file of a GLUE task: one or two sentences, and the class or the score."""

    text: tuple[str, ...]
    label: int | float


def read_rows(path: Path, task: GlueTask) -> Iterator[Row]:
    """Yield the rows of a file of a GLUE task."""
    lines = _lines(path)
    columns = list(task.columns) or _header(lines, path)
    *positions, label = _positions(path, columns, (*task.text, task.label))
    num_rows = num_broken = 0
    for number, entries in lines:
        is_broken = len(entries) < len(columns) or not all(entries[i].strip() for i in positions)
        if is_broken and task.has_broken_rows:
            num_broken += 1
            continue
        where = f'{path}, line {number}'
        if len(entries) != len(columns):
            raise ValueError(f'{where}: expected {len(columns)} columns between tabs (got '
                             f'{len(entries)})')
        if is_broken:
            raise ValueError(f"{where}: expected a text in the column "
                             f"{next(columns[i] for i in positions if not entries[i].strip())!r} "
                             f"(got none)")
        num_rows += 1
        yield Row(tuple(entries[i] for i in positions),
                  _parse_label(entries[label], task.classes, where))
    if num_rows == 0:
        raise ValueError(f"{path}: expected at least one row (got none)")
    others = unread(columns, (*task.text, task.label))
    if num_broken or others:
        tell(path, number_of('row', num_rows), {'rows that lack a sentence': num_broken, **others})


def _header(lines: Iterator[tuple[int, list[str]]], path: Path) -> list[str]:
    for _, columns in lines:
        return columns
    raise ValueError(f"{path}: expected at least one row (got none)")


def _positions(path: Path, columns: list[str], needed: tuple[str, ...]) -> list[int]:
    """Return the index of each needed column among ``columns``. Raise an error unless each name
    occurs once."""
    for name in needed:
        if name not in columns:
            raise ValueError(f"{path}, line 1: expected the column {name!r} (got "
                             f"{', '.join(columns)})")
        if columns.count(name) > 1:
            raise ValueError(f"{path}, line 1: expected different column names (got {name!r} "
                             f"twice)")
    return list(map(columns.index, needed))


def read_test_rows(path: Path, task: GlueTask) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the number and the sentences of each row of a GLUE test set.

    The file has a header and no labels. A missing sentence is read as an empty text, because GLUE's
    server requires a prediction for every row.
    """
    lines = _lines(path)
    columns = _header(lines, path)
    positions, is_empty = _positions(path, columns, task.text), True
    for number, entries in lines:
        if not entries[0].isdecimal() or len(entries) > len(columns):
            raise ValueError(f"{path}, line {number}: expected {len(columns)} columns between "
                             f"tabs, with a number in the first (got {len(entries)} columns, with "
                             f"{entries[0]!r:.60} in the first)")
        is_empty = False
        yield entries[0], tuple(entries[i] if i < len(entries) else '' for i in positions)
    if is_empty:
        raise ValueError(f"{path}: expected at least one row (got none)")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the entries of each line. Quotation marks are read as ordinary text."""
    with readable(f"'path' cannot be read: {path}",
                  "'path' must be the folder of one task, as GLUE distributes it"):
        for number, line in filled_lines(path):
            yield number, line.rstrip('\r\n').split('\t')


def _parse_label(text: str, classes: tuple[str, ...], where: str) -> int | float:
    if classes:
        if text not in classes:
            raise ValueError(f'{where}: expected the label {" or ".join(classes)} (got '
                             f'{text[:60]!r})')
        return classes.index(text)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0. <= score <= 5.:
        raise ValueError(f'{where}: expected a score from 0 to 5 (got {text[:60]!r})')
    return score
