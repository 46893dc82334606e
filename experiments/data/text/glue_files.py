"""The eight GLUE tasks on sentences or pairs of sentences, from GLUE's files."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.data.text.document_files import Document
from experiments.data.what_was_read import number_of, readable, tell, unread
from graphattn.utils.reading import filled_lines


@dataclass(frozen=True)
class GlueTask:
    """The columns, labels and metric of a GLUE task."""

    text: tuple[str, ...]  # the columns of the one or two sentences
    label: str
    classes: tuple[str, ...]  # the labels in class order; empty if the label is a score from 0 to 5
    metric: str  # that the papers report
    dev: tuple[str, ...] = ('dev',)  # file names without .tsv
    test: tuple[str, ...] = ('test',)
    columns: tuple[str, ...] = ()  # of files without a header
    has_broken_rows: bool = False  # rows that lack a sentence are skipped


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


def read_rows(path: Path, task: GlueTask) -> Iterator[Document]:
    """Yield the rows of a file of a GLUE task."""
    used = (*task.text, task.label)
    columns, lines = _opened(path, used, task.columns)
    num_rows = num_broken = 0
    for number, entries in lines:
        where, row = f'{path}, line {number}', dict(zip(columns, entries))
        empty = [name for name in task.text if not row.get(name, '').strip()]
        if task.has_broken_rows and (empty or len(entries) < len(columns)):
            num_broken += 1
            continue
        if len(entries) != len(columns):
            raise ValueError(f'{where}: expected {len(columns)} columns between tabs (got '
                             f'{len(entries)})')
        if empty:
            raise ValueError(f'{where}: expected a text in the column {empty[0]!r} (got none)')
        num_rows += 1
        yield Document(tuple(row[name] for name in task.text),
                       _parse_label(row[task.label], task.classes, where))
    if num_rows == 0:
        raise ValueError(f"{path}: expected at least one row (got none)")
    others = unread(columns, used)
    if num_broken or others:
        tell(path, number_of('row', num_rows), {'rows that lack a sentence': num_broken, **others})


def read_test_rows(path: Path, task: GlueTask) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the number and the sentences of each row of a GLUE test set, which has a header and no
    labels."""
    columns, lines = _opened(path, task.text)
    number = 0
    for number, entries in lines:
        if not entries[0].isdecimal() or len(entries) > len(columns):
            raise ValueError(f"{path}, line {number}: expected {len(columns)} columns between "
                             f"tabs, with a number in the first (got {len(entries)} columns, with "
                             f"{entries[0]!r:.60} in the first)")
        row = dict(zip(columns, entries))
        # GLUE's server requires a prediction for every row, also without a sentence
        yield entries[0], tuple(row.get(name, '') for name in task.text)
    if not number:
        raise ValueError(f"{path}: expected at least one row (got none)")


def _opened(path: Path, needed: tuple[str, ...],
            columns: tuple[str, ...] = ()) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the columns of a file, and the number and the entries of each line after them."""
    lines = _lines(path)
    names = list(columns) or next(lines, (0, []))[1]
    if not names:
        raise ValueError(f"{path}: expected at least one row (got none)")
    for name in needed:
        if names.count(name) != 1:
            raise ValueError(f"{path}, line 1: expected one column {name!r} (got "
                             f"{', '.join(names)})")
    return names, lines


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with readable(f"'path' cannot be read: {path}",
                  "'path' must be the folder of one task, as GLUE distributes it"):
        for number, line in filled_lines(path):
            yield number, line.rstrip('\r\n').split('\t')  # quotation marks are ordinary text


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
