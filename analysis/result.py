"""What the questions of this package return."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real

import numpy as np


@dataclass(frozen=True)
class Result:
    """A frozen dataclass that prints its scalar fields as a table and converts to a dict."""

    def to_dict(self) -> dict[str, object]:
        """All fields in types that JSON knows; what is not finite becomes ``None``."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def scalars(self) -> dict[str, object]:
        """The fields that fit into a cell of a table: numbers, truth values, text and ``None``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items()
                if value is None or isinstance(value, str | Real | np.bool_)}

    def __str__(self) -> str:
        cells = {name.replace('_', ' '): cell(value) for name, value in self.scalars().items()}
        width = max(map(len, cells), default=0)
        return '\n'.join([type(self).__name__,
                          *(f'  {name:<{width}}  {text}' for name, text in cells.items())])


def cell(value: object) -> str:
    """A value as a table shows it: six digits of a float, yes or no, ``-`` for what is missing."""
    if value is None:
        return '-'
    if isinstance(value, bool | np.bool_):
        return 'yes' if value else 'no'
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f'{value:.6g}'
    return str(value)


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as lines of text, all columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return '\n'.join('  '.join(text.ljust(width) for text, width in zip(row, widths)).rstrip()
                     for row in rows)


def _plain(value: object) -> object:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return value
