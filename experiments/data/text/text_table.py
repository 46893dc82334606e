"""Tables of labelled texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data.labels import class_names, class_numbers, given_parts, stratified
from experiments.data.sequences import check_at_least
from experiments.data.text.document_files import PARTS, Collection, Document, DocumentSource
from experiments.data.text.tables import Table, tables_of

DEFAULTS = (['text'], ['text_a', 'text_b'])


@dataclass(frozen=True)
class TextTable(DocumentSource):
    """Texts with labels, or pairs of texts with labels, one per row::

        text,label                              {"text_a": "It rains.", "text_b": "It is wet.",
        "It rains, and rains.",weather            "label": "entailed"}

    A table is a ``.csv`` or ``.tsv`` file with a header, a ``.json``, ``.jsonl`` or ``.ndjson``
    file with an object on each line (any of them may end in ``.gz``), a ``.parquet`` file, a folder
    that ``save_to_disk`` of ``datasets`` wrote, or a name on Hugging Face's hub, such as ``imdb``
    or ``nyu-mll/glue:sst2``. Labels are strings or whole numbers.

    Args:
        path (str): The training table. Its splits, or the tables train, val and test of a folder,
            are the parts.
        val (str, optional): The development table. If omitted, a tenth of the rows of ``path``,
            unless it has this part.
        test (str, optional): The test table. If omitted, another tenth of the rows of ``path``,
            unless it has this part.
        columns (list of str, optional): The column of the text, or the two columns of a pair. If
            omitted, ``text``, or ``text_a`` and ``text_b``.
        label (str): The column of the label.
        classes (list of str, optional): The names of the classes in order. If omitted, the labels
            in the training file.
        longer_than (int): Rows with at most this number of words are left out.
        num_sampled (int, optional): Number of rows to draw from ``path``. If omitted, all rows.
        seed (int): Seed of the draw and of the division into parts.
    """

    path: str
    val: str | None = None
    test: str | None = None
    columns: list[str] | None = None
    label: str = 'label'
    classes: list[str] | None = None
    longer_than: int = 0
    num_sampled: int | None = None
    seed: int = 0

    def __post_init__(self):
        check_at_least(0, longer_than=self.longer_than)
        check_at_least(1, num_sampled=1 if self.num_sampled is None else self.num_sampled)
        if self.columns is not None and len(self.columns) not in (1, 2):
            raise ValueError(f"'columns' must contain one column for single texts, or two for "
                             f"pairs (got {', '.join(self.columns) or 'none'})")

    def read(self) -> Collection:
        tables = tables_of(Path(self.path)) | {
            part: tables_of(path)['train']
            for part, path in given_parts(self.path, self.val, self.test).items()
            if part != 'train'}
        rows = {part: list(_texts(table, self.columns, self.label, self.longer_than))
                for part, table in tables.items()}
        if self.num_sampled is not None:
            rows['train'] = self._sampled(rows['train'])
        classes = class_names((row.label for row in rows['train']), self.classes, self.path)
        documents = {part: _documents(some, classes) for part, some in rows.items()}
        learn = documents['train']
        division = stratified(
            [tuple(' '.join(text.lower().split()) for text in document.texts)
             for document in learn],
            np.array([document.label for document in learn]),
            [part for part in PARTS if part not in documents], self.seed, self.path)
        documents |= {part: [learn[number] for number in numbers]
                      for part, numbers in division.items()}
        return Collection(classes, {part: documents[part] for part in PARTS})

    def _sampled(self, rows: list[Row]) -> list[Row]:
        if len(rows) < self.num_sampled:
            raise ValueError(f"'num_sampled' must be at most {len(rows)}, the number of rows with "
                             f"more than {self.longer_than} words in {self.path} (got "
                             f"{self.num_sampled}); lower 'num_sampled' or 'longer_than'")
        rng = np.random.default_rng(self.seed)
        return [rows[i] for i in sorted(rng.choice(len(rows), self.num_sampled, replace=False))]


class Row(NamedTuple):
    """A row of a table: its number and place, its one or two texts, and its label if any."""

    number: int
    where: str
    texts: tuple[str, ...]
    label: str | None


def read_texts(path: Path, columns: Sequence[str] | None = None,
               label: str | None = None) -> Iterator[Row]:
    """Yield each row of a table as a Row."""
    tables = tables_of(path)
    if len(tables) > 1:
        raise ValueError(f"{path}: expected one table (got {', '.join(tables)}); pass one of them")
    return _texts(tables['train'], columns, label)


def _texts(table: Table, columns: Sequence[str] | None, label: str | None,
           longer_than: int = 0) -> Iterator[Row]:
    where = ''
    for number, row in table.rows:
        where = f'{table.where} {number}'
        if columns is None:
            columns = next((names for names in DEFAULTS if set(names) <= row.keys()), DEFAULTS[0])
        used = (*columns, *([] if label is None else [label]))
        table.used.update(used)
        for name in used:
            if name not in row:
                raise ValueError(f"{where}: expected the column {name!r:.60} (got "
                                 f"{', '.join(row):.200}); for other names, pass 'columns' and "
                                 f"'label', and name the columns of a CSV file in its first line")
        named = None if label is None else _label(row[label], label, where)
        texts = [row[name] for name in columns]
        if longer_than and all(isinstance(text, str) for text in texts) and sum(
                len(text.split()) for text in texts) <= longer_than:
            continue
        yield Row(number, where, tuple(map(_text, texts, columns, repeat(where))), named)
    if not where:
        raise ValueError(f"{table.where} 1: expected at least one text (got none)")


def _documents(rows: list[Row], classes: tuple[str, ...]) -> list[Document]:
    numbers = class_numbers([row.label for row in rows], classes, lambda place: rows[place].where)
    return [Document(row.texts, number) for row, number in zip(rows, numbers.tolist())]


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'{where}: expected a text in {column!r:.60} (got {value!r:.60})')
    return value.strip()


def _label(value: Any, column: str, where: str) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f'{where}: expected a string or an integer in {column!r:.60} (got '
                         f'{value!r:.60})')
    return str(value).strip()
