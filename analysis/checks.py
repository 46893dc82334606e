"""Checks of the arguments of questions."""

from __future__ import annotations

import math
from numbers import Integral, Real


def check_count(name: str, value: int, at_least: int = 1, at_most: int | None = None) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"'{name}' must be an int (got {type(value).__name__})")
    if value < at_least:
        raise ValueError(f"'{name}' must be at least {at_least} (got {value})")
    if at_most is not None and value > at_most:
        raise ValueError(f"'{name}' must be at most {at_most:,} (got {value:,})")


def check_probability(name: str, value: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"'{name}' must be a number (got {type(value).__name__})")
    if not (math.isfinite(value) and 0 < value <= 1):
        raise ValueError(f"'{name}' must be in (0, 1] (got {value})")


def check_positive(name: str, value: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"'{name}' must be a number (got {type(value).__name__})")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"'{name}' must be positive (got {value})")
