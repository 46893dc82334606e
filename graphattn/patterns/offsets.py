"""Edges at chosen distances."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from graphattn.patterns.base import MAX_NUMBER, RowPattern
from graphattn.patterns.layouts import diagonals


@dataclass(frozen=True, repr=False)
class Offsets(RowPattern):
    r"""A query attends to the keys at some offsets from it,

    .. math::
        j - i \in \text{offsets}.

    Args:
        offsets (tuple of int): The offsets; negative ones are of earlier keys.

    Raises:
        TypeError: ``offsets`` is not a tuple of ints.
        ValueError: An offset is too large.

    Example:
        >>> from graphattn.patterns import Offsets
        >>> Offsets((-3, 0, 1)).build(5).to_mask().int()
        tensor([[1, 1, 0, 0, 0],
                [0, 1, 1, 0, 0],
                [0, 0, 1, 1, 0],
                [1, 0, 0, 1, 1],
                [0, 1, 0, 0, 1]], dtype=torch.int32)
    """

    offsets: tuple[int, ...]

    def __post_init__(self):
        if not isinstance(self.offsets, tuple):
            raise TypeError(f"'offsets' must be a tuple of ints (got "
                            f"{type(self.offsets).__name__})")
        for offset in self.offsets:
            if not isinstance(offset, Integral) or isinstance(offset, bool):
                raise TypeError(f"'offsets' must contain only ints (got {type(offset).__name__})")
            if abs(offset) > MAX_NUMBER:
                raise ValueError(f"'offsets' must be from -{MAX_NUMBER} to {MAX_NUMBER} (got "
                                 f"{offset})")
        object.__setattr__(self, 'offsets', tuple(map(int, self.offsets)))

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        return diagonals(torch.tensor(self.offsets, dtype=torch.long), queries, num_keys)
