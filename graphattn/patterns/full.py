"""Dense attention, bidirectional and causal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RowPattern
from graphattn.patterns.layouts import grid, key_ranges, positions


@dataclass(frozen=True, repr=False)
class Full(RowPattern):
    """Every query attends to every key.

    Source: Vaswani et al., "Attention is all you need" (2017).
    """

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        return grid(torch.arange(num_keys), positions(queries))

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        return torch.ones_like(edges[0], dtype=torch.bool)


@dataclass(frozen=True, repr=False)
class Causal(RowPattern):
    r"""A query attends to its own position and to all earlier positions: :math:`j \le i`.

    ``pattern & Causal()`` is the causal form of any pattern, at the same cost.

    Source: Vaswani et al., "Attention is all you need" (2017), Sec. 3.2.3.
    """

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        query = positions(queries)
        return key_ranges(queries, torch.zeros_like(query), (query + 1).clamp_(max=num_keys))

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        return edges[0] <= edges[1]
