"""Config files that are no longer than they look."""

from __future__ import annotations

from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

from graphattn._reading import check_aliases

_load = get_loader('yaml')  # which knows 1e-3 as a number, as YAML 1.1 does not


def bound_aliases() -> None:
    """Has jsonargparse refuse YAML whose aliases multiply, nine times nine and so on."""
    set_loader('yaml', _load_checked, exceptions=(yaml.YAMLError,))


def _load_checked(text: str) -> Any:
    check_aliases(text)
    return _load(text)
