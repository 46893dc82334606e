"""Config files that are no longer than they look."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

MAX_VALUES = 100_000

LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
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
        num_values = _num_values(yaml.compose(text, LOADER), {})
        if num_values > MAX_VALUES:
            raise ValueError(f"config must be of at most {MAX_VALUES:,} values (got "
                             f"{num_values:,} with what its aliases repeat)")
        return _load(text)
    except RecursionError as error:
        raise ValueError('config must not be nested thousands of levels deep') from error


def _num_values(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Of a node and its parts, with repetitions; infinite if it is a part of itself."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_num_values(part, known) for part in parts)
    return known[id(node)]
