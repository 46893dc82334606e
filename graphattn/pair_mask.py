"""Masks over the pairs of a sequence while they are being learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphattn._checks import (
    check_bool,
    check_floating,
    check_kind,
    check_number,
    check_ptr,
)
from graphattn._tensors import is_traced
from graphattn.graph import BipartiteGraph
from graphattn.pair_layout import PairLayout


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
        >>> from graphattn.pair_layout import DiagonalLayout
        >>> from graphattn.pair_mask import PairMask
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
        check_kind('layout', layout, PairLayout)
        check_floating('values', values)
        if values.dim() != 2 or values.size(1) != layout.num_values:
            raise ValueError(f"'values' must be [heads, {layout.num_values}] for {layout} (got "
                             f"shape {tuple(values.shape)})")
        check_number('logit_drop', logit_drop, 'positive and finite')
        check_bool(is_hard=is_hard)
        _check_range(values.detach(), is_hard)
        self.values, self.layout = values, layout
        self.logit_drop, self.is_hard = float(logit_drop), is_hard
        self._index_of: dict[int, Tensor] = {}

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

        It is :math:`-c (1 - M_{ij})` (Eq. 6), and ``-inf`` where a hard mask is 0.

        Returns:
            Tensor ``[heads, length, length]`` of the dtype of the values.

        Raises:
            ValueError: The mask does not know sequences of that length.
        """
        drop = self.logit_drop * (self.values - 1)
        if self.is_hard:
            drop = drop.masked_fill(self.values == 0, -torch.inf)
        return self._of_pairs(drop, length, on=0., off=-torch.inf)

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
        check_ptr('ptr', ptr, None, self.device)
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
        index = self._index(length)
        # With its gradient it took 0.25 ms for 12 heads of 128 tokens, and [:, index] 1 ms.
        pairs = torch.cat([values, constants], dim=1).index_select(1, index.flatten())
        return pairs.view(self.heads, length, length)

    def _index(self, length: int) -> Tensor:
        """The number of the value of each pair, which all layers of a pass ask for. It takes
        8 bytes a pair, and so is the mask's, of which there is one to a pass."""
        if length not in self._index_of:
            with torch.inference_mode(False):  # gradients may be taken along it later
                self._index_of[length] = self.layout.index(length, self.device)
        return self._index_of[length]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), 'values': self.values.detach(), '_index_of': {}}

    def __repr__(self) -> str:
        kind = 'hard' if self.is_hard else 'soft'
        return (f'{type(self).__name__}({kind}, heads={self.heads}, {self.layout}, '
                f'density={self.density():.1%})')


def _check_range(values: Tensor, is_hard: bool) -> None:
    if is_traced(values):
        return
    is_valid = (values == 0) | (values == 1) if is_hard else (values >= 0) & (values <= 1)
    if not bool(is_valid.all()):
        raise ValueError(f"'values' must be {'0 or 1' if is_hard else 'in [0, 1]'} (got "
                         f"{float(values[~is_valid][0])})")
