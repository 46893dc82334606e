"""The pattern of the Star-Transformer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RowPattern
from graphattn.patterns.global_tokens import GlobalTokens
from graphattn.patterns.sliding_window import SlidingWindow


@dataclass(frozen=True, repr=False)
class Star(RowPattern):
    r"""A query attends to itself, its two neighbours and token 0. Token 0 attends to all tokens.

    The pattern has the edges of ``SlidingWindow(1) | GlobalTokens(1)``. Token 0 is the relay of the
    Star-Transformer. The other tokens form an open chain instead of a ring, because only a chain
    matches the sparsity that SparseBERT reports.

    Source: Guo et al., "Star-Transformer" (2019), Sec. 3.1; SparseBERT, Figure 1(a).

    Example:
        >>> from graphattn.patterns import Star
        >>> Star().build(5).to_mask().int()
        tensor([[1, 1, 1, 1, 1],
                [1, 1, 1, 0, 0],
                [1, 1, 1, 1, 0],
                [1, 0, 1, 1, 1],
                [1, 0, 0, 1, 1]], dtype=torch.int32)
    """

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        return (SlidingWindow(1) | GlobalTokens(1)).rows(queries, num_queries, num_keys, generator)
