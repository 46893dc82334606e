"""Attention to nearby positions: a band around the diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RowPattern
from graphattn.patterns.layouts import diagonals, positions


@dataclass(frozen=True, repr=False)
class SlidingWindow(RowPattern):
    r"""A query attends to the positions at most ``radius`` steps away from it,

    .. math::
        j = i + o \cdot \text{dilation}, \quad |o| \le \text{radius}.

    A window of size w in papers includes both sides: ``radius = w // 2``. Diffuser calls its
    overlapping blocks a sliding window too; that pattern is :class:`OverlappingBlocks`.

    Args:
        radius (int): Number of steps to either side. With 0, there are only self-loops.
        causal (bool): Whether a query attends only to itself and earlier positions, :math:`o \le
            0`.
        dilation (int): Number of positions per step.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``radius`` is negative or ``dilation`` is below 1.

    Source: Beltagy et al., "Longformer" (2020), Sec. 3.1.

    Example:
        >>> from graphattn.patterns import SlidingWindow
        >>> SlidingWindow(1, dilation=2).build(5).to_mask().int()
        tensor([[1, 0, 1, 0, 0],
                [0, 1, 0, 1, 0],
                [1, 0, 1, 0, 1],
                [0, 1, 0, 1, 0],
                [0, 0, 1, 0, 1]], dtype=torch.int32)
    """

    radius: int
    causal: bool = False
    dilation: int = 1

    def __post_init__(self):
        self._require_int('radius', at_least=0)
        self._require_bool('causal')
        self._require_int('dilation', at_least=1)

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        furthest = (max(num_queries, num_keys) - 1) // self.dilation
        reach = min(self.radius, furthest)
        step = torch.arange(-reach, 1 if self.causal else reach + 1)
        return diagonals(step * self.dilation, queries, num_keys)

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor] | None:
        query = positions(queries)[:, None]
        end = query + (1 if self.causal else self.radius + 1)
        return (query - self.radius, end) if self.dilation == 1 else None
