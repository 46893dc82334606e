"""Attention to positions at exponentially growing distances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RowPattern
from graphattn.patterns.layouts import all_offsets, diagonals


@dataclass(frozen=True, repr=False)
class LogSparse(RowPattern):
    r"""A query attends to itself and to the positions a power of two away,

    .. math::
        |i - j| \in \{0, 1, 2, 4, 8, \dots\}.

    There are :math:`O(n \log n)` edges.

    Args:
        causal (bool): Whether a query attends only to :math:`j \le i`, as in Li et al. (2019).
            SparseBERT reports the sparsity of the bidirectional pattern.

    Raises:
        TypeError: ``causal`` is not a bool.

    Source: Li et al., "Enhancing the locality and breaking the memory bottleneck of Transformer on
    time series forecasting" (2019), Sec. 4.2; SparseBERT, Figure 1(b).

    Example:
        >>> from graphattn.patterns import LogSparse
        >>> LogSparse(causal=True).build(6).to_mask().int()
        tensor([[1, 0, 0, 0, 0, 0],
                [1, 1, 0, 0, 0, 0],
                [1, 1, 1, 0, 0, 0],
                [0, 1, 1, 1, 0, 0],
                [1, 0, 1, 1, 1, 0],
                [0, 1, 0, 1, 1, 1]], dtype=torch.int32)
    """

    causal: bool = False

    def __post_init__(self):
        self._require_bool('causal')

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        offset = all_offsets(queries, num_keys)
        distance = offset.abs()
        attends = (distance & (distance - 1)) == 0  # at most one bit is set
        if self.causal:
            attends &= offset <= 0
        return diagonals(offset[attends], queries, num_keys)
