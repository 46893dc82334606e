"""Edges that depend only on the distance of query and key: all, bands around the diagonal and
others."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from graphattn.patterns.base import MAX_NUMBER, RangePattern, RowPattern
from graphattn.patterns.layouts import all_offsets, diagonals, grid, positions


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
