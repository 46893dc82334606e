"""Results of questions: dataclasses that print as a table and convert to a dict."""

from __future__ import annotations

import inspect
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from textwrap import shorten
from typing import ClassVar, Self

import numpy as np

_OF_TOKENS = 'of tokens'
_BY_TOKEN = 'by token'
_MAX_ROWS = 50
_MAX_TEXTS = 4  # in a summary
_WIDTH = 100  # width of a table with a row per result
_MEANING = 70  # width of what a row means
_MAX_TOKENS = 3  # in a text


def token_numbers(**options: object) -> np.ndarray | None:
    """Return a dataclass field for an array of token indices."""
    return field(metadata={_OF_TOKENS: True}, **options)


class TokenText(str):
    """A text about tokens, written with their numbers; ``named`` returns it with their names."""

    def __new__(cls, text: str, *tokens: Sequence[int], names: Sequence[str] | None = None):
        shown = super().__new__(cls, text.format(*(_some(some, names) for some in tokens)))
        shown.text, shown.of = text, tokens
        return shown

    def __radd__(self, before: str) -> TokenText:
        return TokenText(before + self.text, *self.of)

    def named(self, names: Sequence[str]) -> TokenText:
        return TokenText(self.text, *self.of, names=names)


def _some(tokens: Sequence[int], names: Sequence[str] | None) -> str:
    shown = ', '.join(str(token if names is None else names[token])
                      for token in tokens[:_MAX_TOKENS])
    more = len(tokens) - _MAX_TOKENS
    return f'{shown} and {more} more' if more > 0 else shown


def token_values(**options: object) -> np.ndarray | None:
    """Return a dataclass field for an array with a value of each token."""
    return field(metadata={_BY_TOKEN: True}, **options)


@dataclass(frozen=True)
class Result:
    """Base class of results: a frozen dataclass that prints its scalar fields as a table and
    converts to a dict."""

    # The fields that only some graphs have, by the condition, or '' if no table need say it.
    ONLY: ClassVar[dict[str, Sequence[str]]] = {}

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, object]:
        """Return all fields as a dict of JSON types; non-finite values become ``None``."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        has_values = any(_BY_TOKEN in field.metadata and getattr(self, field.name) is not None
                         for field in fields(self))
        return plain | (self.tokens(names) if names else {}) | (
            {'names': list(names)} if names and has_values else {})

    def tokens(self, names: Sequence[str]) -> dict[str, list[str]]:
        values = {field.name: getattr(self, field.name) for field in fields(self)
                  if _OF_TOKENS in field.metadata}
        return {field: [names[token] for token in tokens] for field, tokens in values.items()
                if tokens is not None}

    def named(self, names: Sequence[str] | None) -> Self:
        """Return the result with the names of tokens in its texts; fields that list tokens keep
        their indices."""
        texts = {} if names is None else {
            field.name: _named(getattr(self, field.name), names) for field in fields(self)}
        return replace(self, **texts)

    def scalars(self) -> dict[str, object]:
        """Return the fields that fit into a table cell, by name: numbers, bools, text and
        ``None``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)
                  if _OF_TOKENS not in field.metadata}
        return {name: value for name, value in values.items()
                if value is None or isinstance(value, str | Real | np.bool_)}

    def __str__(self) -> str:
        cells = {name.replace('_', ' '): cell(value) for name, value in self.scalars().items()}
        width = max(map(len, cells), default=0)
        return '\n'.join([type(self).__name__,
                          *(f'  {name:<{width}}  {text}' for name, text in cells.items())])


def _named(value: object, names: Sequence[str]) -> object:
    if isinstance(value, tuple):
        return tuple(_named(part, names) for part in value)
    return value.named(names) if isinstance(value, TokenText) else value


Results = dict[str, list[Result]]
"""Lists of results by label: for the samples of an attention head, or the segments of a graph."""


def table(results: Results) -> str:
    """Return the scalars of results as a text table, with at most 50 results per label."""
    rows, without = with_values(results)
    if has_one_column(rows) and max(len(value) for _, value in rows) <= _WIDTH - _MEANING:
        meaning = meanings(results)
        firsts = [meaning.get(name, '').partition('. ')[0].rstrip('.') for name, _ in rows]
        rows = [[*row, shorten(first, _MEANING, placeholder=' ...')]
                for row, first in zip(rows, firsts)]
    if len(rows) > _MAX_ROWS + 2 and len(results) == 1:
        left_out = [f'... {len(rows) - 2} in all', *[''] * (len(rows[0]) - 1)]
        rows = [*rows[:_MAX_ROWS + 1], left_out, rows[-1]]
    text = '\n\n'.join(map(aligned, _stacked(rows)))
    return f'{text}\n{without}' if without else text


def with_values(results: Results) -> tuple[list[list[str]], str]:
    """Return the rows of a table without those of ``ONLY`` that no graph has, and a line that names
    these with the reasons."""
    rows = table_rows(results)
    empty = {row[0] for row in rows if rows[0][0] == '' and set(row[1:]) == {cell(None)}}
    left_out = {when: [title for name in names if (title := name.replace('_', ' ')) in empty]
                for samples in results.values() for sample in samples
                for when, names in sample.ONLY.items()}
    said = '; '.join(f'{", ".join(titles)} (only {when})' for when, titles in left_out.items()
                     if when and titles)
    without = {title for titles in left_out.values() for title in titles}
    return [row for row in rows if row[0] not in without], f'left out: {said}' if said else ''


def table_rows(results: Results) -> list[list[str]]:
    """Return results as the rows of a table, each a list of cells, with a header as the first
    row."""
    names = scalar_names(results)
    titles = [name.replace('_', ' ') for name in names]
    (label, samples), *others = results.items()
    if others or len(samples) == 1:
        return [['', *results], *([title, *(_summary(samples, name)
                                            for samples in results.values())]
                                  for title, name in zip(titles, names))]
    return [[label, *titles],
            *([str(number), *(cell(sample.scalars().get(name)) for name in names)]
              for number, sample in enumerate(samples)),
            ['all', *(_summary(samples, name) for name in names)]]


def has_one_column(rows: list[list[str]]) -> bool:
    """Return whether rows of a table are the fields of one result, or of one list of results."""
    return rows[0][0] == '' and len(rows[0]) == 2


def meanings(results: Results) -> dict[str, str]:
    return {name.replace('_', ' '): text for samples in results.values() for sample in samples
            for name, text in _meanings(type(sample)).items()}


@cache
def _meanings(result: type[Result]) -> dict[str, str]:
    # from the comments that begin with #: above a field or on its line
    found, comment = {}, []
    try:
        lines = inspect.getsource(result).splitlines()
    except OSError:  # of a class that was made while running
        return {}
    for line in lines:
        code, mark, text = line.partition('#:')
        name = re.match(r' {4}(\w+): ', code)
        comment += [text.strip()] * bool(mark)
        if name:
            found[name[1]] = re.sub(
                r':\w+:`([^`]*)`|``', r'\1', ' '.join(comment)).replace('\\', '')
            comment = []
    return found


def scalar_names(results: Results) -> list[str]:
    return list(dict.fromkeys(name for samples in results.values() for sample in samples
                              for name in sample.scalars()))


def cell(value: object) -> str:
    if value is None:
        return '-'
    if isinstance(value, bool | np.bool_):
        return 'yes' if value else 'no'
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f'{value:.6g}'
    return str(value)


def aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return '\n'.join('  '.join(text.ljust(width) for text, width in zip(row, widths)).rstrip()
                     for row in rows)


def _stacked(rows: list[list[str]]) -> list[list[list[str]]]:
    """Split a wide table into tables that fit the width of a terminal."""
    widths = [2 + max(map(len, column)) for column in zip(*rows)]
    if sum(widths) <= _WIDTH or rows[0][0] == '':
        return [rows]
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
        texts = list(dict.fromkeys(map(cell, values)))
        return ' / '.join(texts) if len(texts) <= _MAX_TEXTS else f'{len(texts)} values'
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
