"""Rows of CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from graphattn._reading import LONGEST_LINE, read_lines


def csv_rows(path: Path, separator: str = ',') -> Iterator[tuple[int, dict[str, str]]]:
    """The number of the first line of each row of a file with a header, and what the row has in
    each column. Blank lines are passed over.

    Args:
        path (Path): The file, see :func:`graphattn._reading.read_lines`.
        separator (str): What stands between columns.

    Raises:
        OSError: The file cannot be read.
        ValueError: A column is there twice, or a row malformed; the message names the line.
    """
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader((line for _, line in read_lines(path)), delimiter=separator, strict=True)
    last = 0  # line of the row before
    try:
        names = next(reader, [])
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise ValueError(f'{path}, line 1: the column {repeated[0]!r:.60} is there twice')
        last = reader.line_num
        for row in tqdm(reader, desc=f'reading {path.name}', unit=' rows', disable=None):
            if row and len(row) != len(names):
                raise ValueError(f'{path}, line {last + 1}: expected {len(names)} columns (got '
                                 f'{len(row)})')
            if row:
                yield last + 1, dict(zip(names, row))
            last = reader.line_num
    except csv.Error as error:
        raise ValueError(f'{path}, line {last + 1}: not CSV ({error})') from error
