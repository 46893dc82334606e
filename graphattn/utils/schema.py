"""Schemas of files: what each field may be. All files that this project writes and reads again are
checked by one, because files may be damaged or hostile.

A schema is one of these:

- a type; ``float`` is any finite number, and ``object`` is anything;
- ``None`` or another constant, a ``range`` of integers, a :class:`Between` or an :class:`Array`;
- a compiled pattern, which the whole text must match;
- a tuple of schemas, of which one must fit, or a list with the schema of all entries;
- a dict with the schema of each field. A field whose name ends in ``?`` may be missing, and the key
  ``str`` has the schema of all fields that are not named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any, NamedTuple

import numpy as np

__all__ = ['Array', 'Between', 'check_schema']


class Between(NamedTuple):
    """A number from ``least`` to ``most``."""

    least: float
    most: float


class Array(NamedTuple):
    """An array of dtypes ``kinds``; names in ``shape`` are sizes that all arrays of a file
    share."""

    kinds: str
    shape: tuple[str | int, ...]
    least: float = -math.inf
    most: float = math.inf
    may_be_nan: bool = False


def check_schema(found: Any, schema: Any, where: str, sizes: dict[str, int] | None = None) -> None:
    """Raise an error, beginning with ``where``, unless the content of a file fits a schema."""
    try:
        _check(found, schema, '', {} if sizes is None else sizes)
    except RecursionError as error:
        raise ValueError(f'{where}: nested too deeply') from error
    except _Misfit as error:
        raise ValueError(f'{where}: {error}') from error


class _Misfit(ValueError):
    """A field that does not fit its schema."""


def _check(found: Any, schema: Any, name: str, sizes: dict[str, int]) -> None:
    if isinstance(schema, dict) and isinstance(found, Mapping):
        named = {key.removesuffix('?'): part for key, part in schema.items() if key is not str}
        for key in found.keys() - named.keys():
            if str not in schema or not isinstance(key, str):
                raise _Misfit(f'unknown field {_inside(name, key)!r}; there are {", ".join(named)}')
        for key in schema.keys() - {str} - found.keys():
            if not key.endswith('?'):
                raise _Misfit(f'field {_inside(name, key)!r} is missing')
        for key, value in found.items():
            _check(value, named[key] if key in named else schema[str], _inside(name, key), sizes)
    elif isinstance(schema, list) and isinstance(found, list | tuple):
        for number, value in enumerate(found):
            _check(value, schema[0], f'{name}[{number}]', sizes)
    elif isinstance(schema, Array) and isinstance(found, np.ndarray):
        _check_array(found, schema, name, sizes)
    elif type(schema) is tuple:
        fits = [each for each in schema if _is_kind(found, each)]
        if not fits:
            raise _misfit(found, schema, name)
        _check(found, fits[0], name, sizes)
    elif not _is_kind(found, schema) or isinstance(schema, dict | list | Array):
        raise _misfit(found, schema, name)


def _is_kind(found: Any, schema: Any) -> bool:
    # without the entries of lists, dicts and arrays
    if isinstance(schema, dict | list):
        return isinstance(found, dict if isinstance(schema, dict) else list | tuple)
    if isinstance(schema, range):
        return type(found) is int and found in schema
    if isinstance(schema, Between) or schema is float:
        least, most = (-math.inf, math.inf) if schema is float else schema
        return type(found) in (int, float) and math.isfinite(found) and least <= found <= most
    if isinstance(schema, re.Pattern):
        return isinstance(found, str) and schema.fullmatch(found) is not None
    if isinstance(schema, type):
        return type(found) is schema if schema in (bool, int) else isinstance(found, schema)
    return type(found) is type(schema) and found == schema


def _check_array(found: np.ndarray, schema: Array, name: str, sizes: dict[str, int]) -> None:
    wanted = tuple(sizes.get(size, size) for size in schema.shape)
    if found.dtype.kind not in schema.kinds or found.ndim != len(wanted) or any(
            isinstance(size, int) and size != other for size, other in zip(wanted, found.shape)):
        raise _Misfit(f'{name!r} must be an array of shape {list(wanted)} and a dtype of '
                      f'{schema.kinds!r} (got {list(found.shape)} and {found.dtype})')
    sizes.update((size, other) for size, other in zip(schema.shape, found.shape)
                 if isinstance(size, str))
    if found.dtype.kind in 'iuf' and not ((schema.least <= found) & (found <= schema.most)
                                          | (np.isnan(found) & schema.may_be_nan)).all():
        raise _Misfit(f'{name!r} must have numbers from {schema.least} to {schema.most} (got '
                      f'{found.min()} to {found.max()})')


def _misfit(found: Any, schema: Any, name: str) -> _Misfit:
    what = f'{name!r} must be' if name else 'expected'
    return _Misfit(f'{what} {_described(schema)} (got {short(found)})')


def _inside(name: str, key: object) -> str:
    key = key.removesuffix('?') if isinstance(key, str) else short(key)
    return f'{name}.{key}' if name else key


def _described(schema: Any) -> str:
    if isinstance(schema, range):
        return f'an integer from {schema.start} to {schema.stop - 1}'
    if isinstance(schema, Between):
        return f'a number from {schema.least} to {schema.most}'
    if isinstance(schema, re.Pattern):
        return f'a text like {schema.pattern}'
    if isinstance(schema, type):
        return 'a finite number' if schema is float else f'a value of type {schema.__name__}'
    if type(schema) is tuple:
        return ' or '.join(map(_described, schema))
    kinds = {dict: 'an object', list: 'a list', Array: 'an array'}
    return kinds.get(type(schema), repr(schema))
