"""Tables of labelled texts, in CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data.labels import class_names, class_numbers, given_parts, stratified
from experiments.data.text.csv_rows import csv_rows
from experiments.data.text.document_files import (
    PARTS,
    Collection,
    Document,
    DocumentSource,
    Pair,
    read_json_lines,
)
from experiments.data.what_was_read import readable

DEFAULTS = (['text'], ['text_a', 'text_b'])
SEPARATORS = {'.csv': ',', '.tsv': '\t'}
JSON = ('.json', '.jsonl', '.ndjson')


@dataclass(frozen=True)
class TextTable(DocumentSource):
    """Texts with labels, or pairs of texts with labels, one per row::

        text,label                              {"text_a": "It rains.", "text_b": "It is wet.",
        "It rains, and rains.",weather            "label": "entailed"}

    Files are ``.csv`` or ``.tsv`` with a header, or ``.json``, ``.jsonl`` or ``.ndjson`` with an
    object on each line. Any file may be gzipped (``.gz``). Labels are strings or integers.

    Args:
        path (str): The training file.
        val (str, optional): The development file. If omitted, a tenth of the rows of ``path``.
        test (str, optional): The test file. If omitted, another tenth of the rows of ``path``.
        columns (list of str, optional): The column of the text, or the two columns of a pair. If
            omitted, ``text``, or ``text_a`` and ``text_b``.
        label (str): The column of the label.
        classes (list of str, optional): The names of the classes in order. If omitted, the labels
            in the training file.
        seed (int): Seed of the division into parts.
    """

    path: str
    val: str | None = None
    test: str | None = None
    columns: list[str] | None = None
    label: str = 'label'
    classes: list[str] | None = None
    seed: int = 0

    def __post_init__(self):
        if self.columns is not None and len(self.columns) not in (1, 2):
            raise ValueError(f"'columns' must contain one column for single texts, or two for "
                             f"pairs (got {', '.join(self.columns) or 'none'})")

    def read(self) -> Collection:
        files = given_parts(self.path, self.val, self.test)
        rows = {part: list(read_texts(path, self.columns, self.label))
                for part, path in files.items()}
        classes = class_names((row.label for row in rows['train']), self.classes, self.path)
        documents = {part: _documents(some, files[part], classes) for part, some in rows.items()}
        learn = documents['train']
        division = stratified(
            [tuple(' '.join(text.lower().split()) for text in document.texts)
             for document in learn],
            np.array([document.label for document in learn]),
            [part for part in PARTS if part not in documents], self.seed, self.path)
        documents |= {part: [learn[number] for number in numbers]
                      for part, numbers in division.items()}
        return Collection(classes, {part: documents[part] for part in PARTS})


class Row(NamedTuple):
    """A row of a table: the number of its first line, its one or two texts, and its label if
    requested."""

    line: int
    texts: tuple[str, ...]
    label: str | None

    def with_class(self, number: int) -> Document | Pair:
        """Return the text of this row as a Document, or its two texts as a Pair, with ``number`` as
        the index of the class."""
        return (Document if len(self.texts) == 1 else Pair)(*self.texts, number)


def read_texts(path: Path, columns: Sequence[str] | None = None,
               label: str | None = None) -> Iterator[Row]:
    """Yield each row of a CSV or JSON lines table as a Row."""
    if not any(path.name.endswith((kind, f'{kind}.gz')) for kind in (*SEPARATORS, *JSON)):
        raise ValueError(f"'path' must be a table with a suffix {', '.join((*SEPARATORS, *JSON))}, "
                         f"optionally followed by .gz (got {path})")
    number, used = 0, set()
    is_json = path.name.removesuffix('.gz').endswith(JSON)
    for number, row in read_json_lines(path, used) if is_json else _csv_rows(path, used):
        where = f'{path}, line {number}'
        if columns is None:
            columns = next((names for names in DEFAULTS if set(names) <= row.keys()), DEFAULTS[0])
        used.update((*columns, *([] if label is None else [label])))
        for name in (*columns, *([] if label is None else [label])):
            if name not in row:
                raise ValueError(f"{where}: expected the column {name!r:.60} (got "
                                 f"{', '.join(row):.200}); for other names, pass 'columns' and "
                                 f"'label', and name the columns of a CSV file in its first line")
        texts = tuple(_text(row[name], name, where) for name in columns)
        yield Row(number, texts, None if label is None else _label(row[label], label, where))
    if not number:
        raise ValueError(f"{path}: expected at least one text (got none)")


def _csv_rows(path: Path, used: set[str]) -> Iterator[tuple[int, dict[str, str]]]:
    kind = Path(path.name.removesuffix('.gz')).suffix
    with readable(f"'path' cannot be read: {path}"):
        yield from csv_rows(path, SEPARATORS[kind], used=used)


def _documents(rows: list[Row], path: Path,
               classes: tuple[str, ...]) -> list[Document] | list[Pair]:
    numbers = class_numbers([row.label for row in rows], classes,
                            lambda place: f'{path}, line {rows[place].line}')
    return [row.with_class(number) for row, number in zip(rows, numbers.tolist())]


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'{where}: expected a text in {column!r:.60} (got {value!r:.60})')
    return value.strip()


def _label(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f'{where}: expected a string or an integer in {column!r:.60} (got '
                         f'{value!r:.60})')
    return str(value).strip()
