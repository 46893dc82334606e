"""Masks over the pairs of a sequence that are being learned, and which pairs share a value."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_ptr, check_size
from graphattn.graph import BipartiteGraph


@dataclass(frozen=True)
class PairLayout(ABC):
    """Which value of a mask of ``size`` tokens a pair of a query and a key has.

    Two numbers follow those of the values: :attr:`always_on` and :attr:`always_off`.

    A shorter sequence takes the first positions of the mask and, for its last token, the last
    one, for there stands the separator, as in training on sequences of full length.

    Args:
        size (int): Tokens n of the mask.
        border (bool): Whether the first and the last row and column are always on. Then a
            sequence has its own first and last token for border.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``size`` is below 1, or below 3 with a border, which leaves nothing inside.
    """

    size: int
    border: bool = False

    def __post_init__(self):
        check_size('size', self.size)
        if not isinstance(self.border, bool):
            raise TypeError(f"'border' must be a bool (got {type(self.border).__name__})")
        fewest = 3 if self.border else 1
        if self.size < fewest:
            inside = ' with a border, which leaves nothing inside' if self.border else ''
            raise ValueError(f"'size' must be at least {fewest}{inside} (got {self.size})")
        object.__setattr__(self, 'size', int(self.size))

    @property
    @abstractmethod
    def num_values(self) -> int:
        """Number of values that differ."""

    @abstractmethod
    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        """The value of each pair; what it says of pairs on a border is not read."""

    @property
    def always_on(self) -> int:
        """The number that stands for a pair that is always on."""
        return self.num_values

    @property
    def always_off(self) -> int:
        """The number that stands for a pair that is always off."""
        return self.num_values + 1

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest sequence that the mask knows; ``None`` if it knows them all."""
        return self.size

    def value_of(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        """The number of the value of each pair of a sequence of ``length`` tokens.

        Args:
            query (Tensor): int64, of any shape.
            key (Tensor): int64, of a shape that broadcasts with that of ``query``.
            length (int): Tokens of the sequence.

        Returns:
            int64 Tensor of the broadcast shape.

        Raises:
            ValueError: The mask does not know sequences of that length.
        """
        self.check_length(length)
        value = self._inner_value(query, key, length)
        if not self.border:
            return value
        on_border = (query == 0) | (query == length - 1) | (key == 0) | (key == length - 1)
        return value.masked_fill(on_border, self.always_on)

    def index(self, length: int, device: torch.device | str = 'cpu') -> Tensor:
        """:meth:`value_of` all pairs, int64 ``[length, length]``. It is kept: do not change it."""
        return _index(self, length, torch.device(device))

    def multiplicity(self, device: torch.device | str = 'cpu') -> Tensor:
        """How many of the n x n pairs have each value, and each constant,
        int64 ``[num_values + 2]``."""
        return _multiplicity(self, torch.device(device))

    def check_length(self, length: int) -> None:
        """Raises a ValueError for lengths that the mask does not know."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(f"'length' must not exceed the {self.max_length} tokens of the mask "
                             f"(got {length})")

    def _inside(self, token: Tensor, length: int) -> Tensor:
        """Where the token stands in the mask, counted from the first row inside the border."""
        position = torch.where(token == length - 1, self.size - 1, token)
        return position - int(self.border)

    @property
    def _inner_size(self) -> int:
        return self.size - 2 * int(self.border)


@dataclass(frozen=True)
class FreeLayout(PairLayout):
    """Every pair has a value of its own: SparseBERT's unstructured masks.

    Args are those of :class:`PairLayout`.
    """

    @property
    def num_values(self) -> int:
        return self._inner_size**2

    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        return self._inside(query, length) * self._inner_size + self._inside(key, length)


@dataclass(frozen=True)
class SymmetricLayout(PairLayout):
    """Pairs (i, j) and (j, i) share a value (SparseBERT, Sec. 3.1).

    Args are those of :class:`PairLayout`.
    """

    @property
    def num_values(self) -> int:
        return self._inner_size * (self._inner_size + 1) // 2

    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        query, key = self._inside(query, length), self._inside(key, length)
        row, column = torch.maximum(query, key), torch.minimum(query, key)
        return row * (row + 1) // 2 + column


@dataclass(frozen=True)
class DiagonalLayout(PairLayout):
    r"""All pairs of one distance :math:`|i - j|` share a value: SparseBERT's structured masks.

    There are n - 2 values inside the border (Sec. 4.1), n without one, as in the authors' code.
    The distance is that of the tokens themselves, so longer sequences are known too: pairs
    further apart than any inside the mask are off.

    Args are those of :class:`PairLayout`.

    Example:
        >>> from graphattn.pair_mask import DiagonalLayout
        >>> DiagonalLayout(5).index(5)  # 3 is always on
        tensor([[3, 3, 3, 3, 3],
                [3, 0, 1, 2, 3],
                [3, 1, 0, 1, 3],
                [3, 2, 1, 0, 3],
                [3, 3, 3, 3, 3]])
    """

    border: bool = True

    @property
    def num_values(self) -> int:
        return self._inner_size

    @property
    def max_length(self) -> None:
        return None

    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        distance = (query - key).abs()
        return distance.masked_fill(distance >= self.num_values, self.always_off)

    def multiplicity(self, device: torch.device | str = 'cpu') -> Tensor:
        # Known without a look at the pairs, so that long masks settle in O(n).
        distance = torch.arange(self.num_values, device=device)
        num_pairs = (self._inner_size - distance) * torch.where(distance == 0, 1, 2)
        constants = torch.tensor([self.size**2 - self._inner_size**2, 0], device=device)
        return torch.cat([num_pairs, constants])


LAYOUTS = {layout.__name__: layout for layout in (FreeLayout, SymmetricLayout, DiagonalLayout)}


class PairMask:
    r"""The mask of every head while it is learned: one value for all pairs that share it.

    A value M enters the attention before the softmax, where Eq. 5 and 6 of SparseBERT put it:

    .. math::
        \alpha_{ij} = \operatorname*{softmax}_j \left( \frac{\langle \mathrm{query}_i,
        \mathrm{key}_j \rangle}{\sqrt{C}} - c \, (1 - M_{ij}) \right).

    Of a soft mask, a pair whose value is 0 keeps the share :math:`e^{-c}` of its weight. Large c
    makes a hard choice of the largest value of each row: at c = 10,000 a value of 0.50 beside one
    of 0.51 has a weight of :math:`10^{-43}`. Around 10 the mask stays soft.

    Of a hard mask, a pair whose value is 0 has no weight at all, whatever c, and a query without
    any pair gives 0. There c is the factor of the gradient alone,
    :math:`\partial L / \partial M_{ij} = c \, \partial L / \partial \mathrm{score}_{ij}`. It is 0
    for pairs that are off, which therefore come back by chance or by what they share, not by the
    task's gradient; a penalty on :meth:`norm` acts on all pairs. Without a norm in the optimiser,
    the ratio of its weight to c decides how sparse a mask becomes.

    Args:
        values (Tensor): floating ``[heads, layout.num_values]`` in [0, 1]. May carry a gradient.
        layout (PairLayout): Which pairs have which value.
        logit_drop (float): c, positive.
        is_hard (bool): Whether all values are 0 or 1, and 0 means no attention at all.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Sizes do not fit, values are out of range, or ``logit_drop`` is not positive.

    Source: SparseBERT, Sec. 3.1 and 4.1.

    Example:
        >>> import torch
        >>> from graphattn.pair_mask import DiagonalLayout, PairMask
        >>> mask = PairMask(torch.tensor([[0., 1., 0.]]), DiagonalLayout(5), is_hard=True)
        >>> mask.bias(5)[0]
        tensor([[0., 0., 0., 0., 0.],
                [0., -inf, 0., -inf, 0.],
                [0., 0., -inf, 0., 0.],
                [0., -inf, 0., -inf, 0.],
                [0., 0., 0., 0., 0.]])
        >>> mask.norm()
        tensor(20.)
    """

    def __init__(self, values: Tensor, layout: PairLayout, *, logit_drop: float = 10.,
                 is_hard: bool):
        if not isinstance(layout, PairLayout):
            raise TypeError(f"'layout' must be a PairLayout (got {type(layout).__name__})")
        check_floating('values', values)
        if values.dim() != 2 or values.size(1) != layout.num_values:
            raise ValueError(f"'values' must be [heads, {layout.num_values}] for {layout} (got "
                             f"shape {tuple(values.shape)})")
        check_logit_drop(logit_drop)
        known = values.detach()
        is_valid = (known == 0) | (known == 1) if is_hard else (known >= 0) & (known <= 1)
        if not bool(is_valid.all()):
            raise ValueError(f"'values' must be {'0 or 1' if is_hard else 'in [0, 1]'} (got "
                             f"{float(known[~is_valid][0])})")
        self.values, self.layout = values, layout
        self.logit_drop, self.is_hard = float(logit_drop), bool(is_hard)
        self._bias: dict[tuple[int, bool], Tensor] = {}

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.values.size(0)

    @property
    def device(self) -> torch.device:
        """The device of the values."""
        return self.values.device

    def bias(self, length: int) -> Tensor:
        r"""What is added to the scores of a sequence of ``length`` tokens.

        It is :math:`-c (1 - M_{ij})` (Eq. 6), and ``-inf`` where a hard mask is 0. Layers that
        share a mask share what is computed here, so their gradients are taken in one pass.

        Returns:
            Tensor ``[heads, length, length]`` of the dtype of the values.

        Raises:
            ValueError: The mask does not know sequences of that length.
        """
        key = length, torch.is_grad_enabled()
        if key not in self._bias:
            drop = self.logit_drop * (self.values - 1)
            if self.is_hard:
                drop = drop.masked_fill(self.values == 0, -torch.inf)
            self._bias[key] = self._of_pairs(drop, length, on=0., off=-torch.inf)
        return self._bias[key]

    def dense(self, length: int) -> Tensor:
        """The value of each pair of a sequence of ``length`` tokens, 1 where it is always on:
        ``[heads, length, length]``."""
        return self._of_pairs(self.values, length, on=1., off=0.)

    def norm(self) -> Tensor:
        r"""The penalty :math:`\|M\|_1` of Eq. 7: the sum over all heads and n x n pairs.

        A value counts as often as pairs share it, and the border counts too.

        Returns:
            floating Tensor, a scalar.
        """
        multiplicity = self.layout.multiplicity(self.device)
        always_on = self.heads * multiplicity[self.layout.always_on]
        return (self.values @ multiplicity[:-2].to(self.values.dtype)).sum() + always_on

    def density(self) -> float:
        """The mean value of the n x n pairs of all heads; of a hard mask, the share that is on."""
        return float(self.norm().detach()) / max(self.heads * self.layout.size**2, 1)

    def to_graph(self, ptr: Tensor) -> BipartiteGraph:
        """The pairs whose value is positive as edges.

        Args:
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.

        Returns:
            BipartiteGraph with a block for each head and sequence, the sequences of head 0 first
            (:func:`graphattn.layers.fold_heads`). Edges of a soft mask carry its values as their
            ``edge_prob``.
        """
        check_ptr('ptr', ptr, int(ptr[-1]), self.device)
        lengths = ptr.diff().tolist()
        graphs = {length: self._graphs(length) for length in set(lengths)}
        blocks = [graphs[length][head] for head in range(self.heads) for length in lengths]
        if not blocks:
            return BipartiteGraph(ptr.new_empty(2, 0), 0, query_ptr=ptr[:1])
        return BipartiteGraph.batch(blocks)

    def _graphs(self, length: int) -> list[BipartiteGraph]:
        """The graph of each head for one sequence."""
        dense = self.dense(length)
        graphs = [BipartiteGraph.from_mask(values > 0) for values in dense]
        if self.is_hard:
            return graphs
        return [graph.with_edge_prob(values[graph.query, graph.key])
                for graph, values in zip(graphs, dense)]

    def _of_pairs(self, values: Tensor, length: int, on: float, off: float) -> Tensor:
        constants = values.new_tensor([on, off]).expand(self.heads, 2)
        index = self.layout.index(length, self.device)
        # With its gradient it took 0.25 ms for 12 heads of 128 tokens, and [:, index] 1 ms.
        pairs = torch.cat([values, constants], dim=1).index_select(1, index.flatten())
        return pairs.view(self.heads, length, length)

    def __repr__(self) -> str:
        kind = 'hard' if self.is_hard else 'soft'
        return (f'{type(self).__name__}({kind}, heads={self.heads}, {self.layout}, '
                f'density={self.density():.1%})')


def check_logit_drop(logit_drop: float) -> None:
    if not isinstance(logit_drop, Real) or isinstance(logit_drop, bool):
        raise TypeError(f"'logit_drop' must be a number (got {type(logit_drop).__name__})")
    if not 0 < logit_drop < math.inf:
        raise ValueError(f"'logit_drop' must be positive and finite (got {logit_drop})")


# Outside of inference mode, or what is kept could not take part in a later training step.
@lru_cache(maxsize=128)
@torch.inference_mode(False)
def _index(layout: PairLayout, length: int, device: torch.device) -> Tensor:
    token = torch.arange(length, device=device)
    return layout.value_of(token[:, None], token, length)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _multiplicity(layout: PairLayout, device: torch.device) -> Tensor:
    index = layout.index(layout.size, device).flatten()
    return torch.bincount(index, minlength=layout.num_values + 2)
