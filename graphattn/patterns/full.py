"""Dense attention, bidirectional and causal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RangePattern
from graphattn.patterns.layouts import grid, positions


@dataclass(frozen=True, repr=False)
class Full(RangePattern):
    """Every query attends to every key.

    Source: Vaswani et al., "Attention is all you need" (2017).
    """

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        return grid(torch.arange(num_keys), positions(queries))  # a GPU does not wait for sizes

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor]:
        begin = torch.zeros_like(positions(queries)[:, None])
        return begin, begin + num_keys

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        return torch.ones_like(edges[0], dtype=torch.bool)


@dataclass(frozen=True, repr=False)
class Causal(RangePattern):
    r"""A query attends to its own position and to all earlier positions: :math:`j \le i`.

    ``pattern & Causal()`` is the causal form of any pattern, at the same cost.

    Source: Vaswani et al., "Attention is all you need" (2017), Sec. 3.2.3.
    """

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor]:
        query = positions(queries)[:, None]
        return torch.zeros_like(query), query + 1

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        return edges[0] <= edges[1]
