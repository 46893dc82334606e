"""Config files that are no longer than they look."""

from __future__ import annotations

import math
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

MAX_VALUES = 100_000

_load = get_loader('yaml')  # which knows 1e-3 as a number, as YAML 1.1 does not


def bound_aliases() -> None:
    """Has jsonargparse refuse YAML whose aliases multiply, nine times nine and so on."""
    set_loader('yaml', read_yaml, exceptions=(yaml.YAMLError,))


def read_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        ValueError: Its aliases repeat it to more than ``MAX_VALUES`` values, or without end, or it
            is nested too deep.
        yaml.YAMLError: It is no YAML.
    """
    try:
        value = _load(text)
        num_values = _num_values(value, {})
    except RecursionError as error:
        raise ValueError('config must not be nested thousands of levels deep') from error
    if num_values > MAX_VALUES:
        raise ValueError(f"config must be of at most {MAX_VALUES:,} values (got {num_values:,} "
                         f"with what its aliases repeat)")
    return value


def _num_values(value: Any, known: dict[int, float]) -> float:
    """With repetitions, each counted once; infinite where a value is part of itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_num_values(part, known) for part in parts)
    return known[id(value)]
