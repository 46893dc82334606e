"""What the questions of this package return."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real

import numpy as np


_OF_TOKENS = 'of tokens'
_MOST_ROWS = 50
_WIDTH = 100  # of a table with a row for each graph


def token_numbers(**options: object) -> np.ndarray | None:
    """A field of a result that holds numbers of tokens, which may have names."""
    return field(metadata={_OF_TOKENS: True}, **options)


@dataclass(frozen=True)
class Result:
    """A frozen dataclass that prints its scalar fields as a table and converts to a dict."""

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, object]:
        """All fields in types that JSON knows; what is not finite becomes ``None``.

        Args:
            names: Of the tokens, in the place of their numbers.
        """
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return plain | (self.tokens(names) if names else {})

    def tokens(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The fields that hold tokens, by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)
                  if _OF_TOKENS in field.metadata}
        return {field: [names[token] for token in tokens] for field, tokens in values.items()
                if tokens is not None}

    def scalars(self) -> dict[str, object]:
        """The fields that fit into a cell of a table: numbers, truth values, text and ``None``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)
                  if _OF_TOKENS not in field.metadata}
        return {name: value for name, value in values.items()
                if value is None or isinstance(value, str | Real | np.bool_)}

    def __str__(self) -> str:
        cells = {name.replace('_', ' '): cell(value) for name, value in self.scalars().items()}
        width = max(map(len, cells), default=0)
        return '\n'.join([type(self).__name__,
                          *(f'  {name:<{width}}  {text}' for name, text in cells.items())])


Results = dict[str, list[Result]]
"""By label; several of one label are those of the samples of a head, or of the blocks of a graph."""


def table(results: Results) -> str:
    """The scalars of results. Of one label with several results a row for each, the last for all;
    else one row for each scalar and one column for each label.

    Where several results share a row or a column it holds mean ± standard deviation.

    Example:
        >>> from analysis.result import table
        >>> from analysis.universality import ThreeTokens, three_tokens
    """
    names = scalar_names(results)
    (label, samples), *others = results.items()
    if others or len(samples) == 1:
        return aligned([['', *results], *([name.replace('_', ' '), *(
            _summary(samples, name) for samples in results.values())] for name in names)])
    shown = samples[:_MOST_ROWS]
    left_out = [[f'... {len(samples)} in all'] + len(names) * ['']] * (len(shown) < len(samples))
    rows = [[label, *(name.replace('_', ' ') for name in names)],
            *([str(number), *(cell(sample.scalars().get(name)) for name in names)]
              for number, sample in enumerate(shown)),
            *left_out, ['all', *(_summary(samples, name) for name in names)]]
    return '\n\n'.join(map(aligned, _stacked(rows)))


def scalar_names(results: Results) -> list[str]:
    """The scalars that results have, each once."""
    return list(dict.fromkeys(name for samples in results.values() for sample in samples
                              for name in sample.scalars()))


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


def _stacked(rows: list[list[str]]) -> list[list[list[str]]]:
    """Tables of the first column and as many others as fit side by side."""
    widths = [2 + max(map(len, column)) for column in zip(*rows)]
    groups, left = [], 0
    for column, width in enumerate(widths[1:], start=1):
        if not groups or width > left:
            groups.append([0])
            left = _WIDTH - widths[0]
        groups[-1].append(column)
        left -= width
    return [[[row[column] for column in group] for row in rows] for group in groups]


def _summary(samples: list[Result], name: str) -> str:
    values = [sample.scalars().get(name) for sample in samples]
    are_numbers = all(isinstance(value, Real) and not isinstance(value, bool) for value in values)
    if len(set(values)) == 1 or not are_numbers:
        return ' / '.join(dict.fromkeys(map(cell, values)))
    return f'{statistics.mean(values):.4g} ± {statistics.stdev(values):.2g}'


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
