"""Graphs with reordered nodes, and an order that brings neighbours together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from graphattn._checks import check_order, check_square
from graphattn.graphs.pairs import number_pairs, rows_of_pairs

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph


def nearby_order(self: BipartiteGraph) -> Tensor:
    """Return an order of the tokens that places neighbours close together, int64 ``[num_queries]``.

    It is the reverse Cuthill-McKee order within each segment, computed in O(edges). The graph must
    be square (:attr:`is_square`).

    Kernels are faster if consecutive queries share keys in the cache of the processor. For a band,
    and for clusters with few edges between them, such an order exists; for uniformly random edges,
    none exists.

    Example:
        >>> import torch
        >>> from graphattn.patterns import SlidingWindow
        >>> shuffled = torch.tensor([3, 0, 2, 4, 1])
        >>> graph = SlidingWindow(1).build(5).reorder(shuffled)
        >>> order = graph.nearby_order()
        >>> graph.reorder(order) == SlidingWindow(1).build(5)
        True
        >>> x = torch.randn(5, 8)         # tokens of ``graph``
        >>> nearby = x[order]             # of ``graph.reorder(order)``
        >>> back = nearby[order.argsort()]
    """
    check_square(self, 'nearby_order')
    if self.num_keys == 0:  # scipy fails then
        return torch.empty(0, dtype=torch.long, device=self.device)
    found = reverse_cuthill_mckee(self.to_scipy(), symmetric_mode=False)
    order = torch.from_numpy(found.astype(np.int64)).to(self.device)
    segment = torch.repeat_interleave(self.segments.query_ptr.diff())
    return order[segment[order].argsort(stable=True)]


def reorder(self: BipartiteGraph, query_order: Tensor,
            key_order: Tensor | None = None) -> BipartiteGraph:
    """Return the graph with reordered nodes: query ``i`` of the new graph is query
    ``query_order[i]`` of this graph. Edges keep their probabilities.

    Args:
        query_order (Tensor): A permutation of the queries within segments, int64 ``[num_queries]``.
        key_order (Tensor, optional): A permutation of the keys within segments, int64
            ``[num_keys]``; ``query_order`` if omitted, in which case the graph must be square.
    """
    check_order('query_order', query_order, self.segments.query_ptr)
    if key_order is None:
        check_square(self, 'reorder', hint="; pass 'key_order' for other graphs")
        key_order = query_order
    check_order('key_order', key_order, self.segments.key_ptr)
    key_place, query_place = key_order.argsort(), query_order.argsort()
    pair, perm = torch.sort(number_pairs(key_place[self.key], query_place[self.query],
                                         self.num_keys))
    edge_prob = None if self.edge_prob is None else self.edge_prob[perm]
    return self._of(*rows_of_pairs(pair, self.num_queries, self.num_keys), self.num_keys,
                     self.segments, edge_prob, True)
