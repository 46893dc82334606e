"""The strided pattern of the Sparse Transformer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RowPattern
from graphattn.patterns.layouts import all_offsets, diagonals


@dataclass(frozen=True, repr=False)
class Strided(RowPattern):
    r"""A query attends to the positions around it and to every ``stride``-th position,

    .. math::
        |i - j| < \text{stride} \quad \text{or} \quad (i - j) \bmod \text{stride} = 0.

    With a stride of about :math:`\sqrt n` there are :math:`O(n \sqrt n)` edges.

    Args:
        stride (int): The stride, and the width of the neighbourhood.
        causal (bool): Whether a query attends only to :math:`j \le i`, as in Child et al. (2019).
            The masks of SparseBERT are bidirectional.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``stride`` is below 1.

    Source: Child et al., "Generating long sequences with sparse Transformers" (2019), Sec. 4.3, the
        union of both heads; SparseBERT, Figure 1(c).

    Example:
        >>> from graphattn.patterns import Strided
        >>> Strided(3, causal=True).build(6).to_mask().int()
        tensor([[1, 0, 0, 0, 0, 0],
                [1, 1, 0, 0, 0, 0],
                [1, 1, 1, 0, 0, 0],
                [1, 1, 1, 1, 0, 0],
                [0, 1, 1, 1, 1, 0],
                [0, 0, 1, 1, 1, 1]], dtype=torch.int32)
    """

    stride: int
    causal: bool = False

    def __post_init__(self):
        self._require_int('stride', at_least=1)
        self._require_bool('causal')

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        offset = all_offsets(queries, num_keys)
        attends = (offset.abs() < self.stride) | (offset % self.stride == 0)
        if self.causal:
            attends &= offset <= 0
        return diagonals(offset[attends], queries, num_keys)
