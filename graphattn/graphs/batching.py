"""Graphs made of other graphs: disjoint unions, in which each graph is a segment, their parts, and
reordered nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from graphattn._checks import check_order, check_sides, check_size, check_square
from graphattn._tensors import cache_host_copies, host_copy, index_dtype
from graphattn.graphs.pairs import number_pairs, rows_of_pairs
from graphattn.graphs.segments import Segments, join_ptrs

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph


def join(kind: type[BipartiteGraph], graphs: Iterable[BipartiteGraph]) -> BipartiteGraph:
    """Return the disjoint union of ``graphs``, which must all be of class ``kind``."""
    graphs = _check_can_be_joined(kind, graphs)
    if len(graphs) == 1:
        return graphs[0]  # graphs are immutable, so no copy is needed
    num_keys = sum(graph.num_keys for graph in graphs)
    key = graphs[0].csr[1].new_empty(sum(graph.num_edges for graph in graphs),
                                     dtype=index_dtype(num_keys))
    end = start = 0
    for graph in graphs:
        part, end = key[end:end + graph.num_edges], end + graph.num_edges
        part.copy_(graph.csr[1])
        # torch does not add integers of type uint16, so int16 with the same bits are added.
        is_short = key.dtype == torch.uint16
        (part.view(torch.int16) if is_short else part).add_(
            start - 2**16 * (is_short and start >= 2**15))
        start += graph.num_keys
    # The segments of the first graph come first; those of each graph keep their order.
    segments = Segments.join([graph.segments for graph in graphs],
                             [(graph.num_queries, graph.num_keys) for graph in graphs])
    indptr = join_ptrs([graph.indptr for graph in graphs], [graph.num_edges for graph in graphs])
    with_prob = graphs[0].edge_prob is not None
    edge_prob = torch.cat([graph.edge_prob for graph in graphs]) if with_prob else None
    return kind._of(indptr, key, num_keys, segments, edge_prob,
                    any(graph.is_reordered for graph in graphs))


@cache_host_copies
def unbatch(self: BipartiteGraph) -> list[BipartiteGraph]:
    """Return a list with one graph for each sequence (segment) of this graph. :meth:`unbatch` is
    the inverse of :meth:`batch`."""
    return [self.segment(number) for number in range(self.num_segments)]


@cache_host_copies
def segment(self: BipartiteGraph, sequence: int, head: int = 0, *,
            heads: int = 1) -> BipartiteGraph:
    """Return the graph of one sequence, and of one head if each head has its own graph.

    Args:
        sequence (int): Index of the sequence.
        head (int): Index of the head.
        heads (int): Number of heads, if each head has its own graph. The segments of this graph are
            then the sequences of head 0, the sequences of head 1, and so on.

    Raises:
        TypeError: An argument is not an int.
        ValueError: An index is out of range, or ``heads`` does not divide the number of segments.

    Example:
        >>> from graphattn import BipartiteGraph
        >>> from graphattn.patterns import Full, SlidingWindow
        >>> graph = BipartiteGraph.batch([Full().build(2), SlidingWindow(0).build(3)])
        >>> graph.segment(1)
        BipartiteGraph(num_queries=3, num_keys=3, num_edges=3, density=33.3%)
    """
    check_sides(heads=heads)
    if self.num_segments % heads:
        raise ValueError(f"'heads' must be a divisor of {self.num_segments}, the number of "
                         f"segments of the graph (got {heads})")
    num_sequences = self.num_segments // heads
    check_size('sequence', sequence, at_most=num_sequences - 1)
    check_size('head', head, at_most=heads - 1)
    number = head * num_sequences + sequence
    (first_query, last_query), (first_key, last_key) = (
        host_copy(ptr)[number:number + 2].tolist() for ptr in self.segments.ptrs)
    indptr, key = self.csr
    first, last = host_copy(indptr)[[first_query, last_query]].tolist()
    edge_prob = None if self.edge_prob is None else self.edge_prob[first:last]
    num_keys = last_key - first_key
    segments = Segments.of(None, None, (last_query - first_query, num_keys), self.device)
    return self._of(indptr[first_query:last_query + 1] - first, key[first:last].long() - first_key,
                     num_keys, segments, edge_prob, self.is_reordered)


def used_keys(graph: BipartiteGraph) -> tuple[Tensor, BipartiteGraph]:
    """Return the keys that have edges, ascending, and the graph from them, of one segment."""
    used, key = graph.key.unique(return_inverse=True)
    return used, graph.from_csr(graph.csr[0], key, used.numel(), validate=False)


def _check_can_be_joined(kind: type[BipartiteGraph],
                         graphs: Iterable[BipartiteGraph]) -> list[BipartiteGraph]:
    if not isinstance(graphs, Iterable):
        raise TypeError(f"'graphs' must be a sequence of BipartiteGraphs (got "
                        f"{type(graphs).__name__}); to batch a single graph, pass [graph]")
    graphs = list(graphs)
    if not graphs:
        raise ValueError("'graphs' must contain at least one BipartiteGraph (got an empty "
                         "sequence)")
    for graph in graphs:
        if not isinstance(graph, kind):
            raise TypeError(f"'graphs' must contain only BipartiteGraphs (got "
                            f"{type(graph).__name__})")
        if graph.device != graphs[0].device:
            raise ValueError(f"'graphs' must all be on one device (got {graphs[0].device} and "
                             f"{graph.device}); move each graph by graph.to('{graphs[0].device}')")
    with_prob = sum(graph.edge_prob is not None for graph in graphs)
    if with_prob not in (0, len(graphs)):
        raise ValueError(f"'graphs' must all have edge_prob, or none may have it (got {with_prob} "
                         f"of {len(graphs)} graphs with edge_prob); call graph.with_edge_prob for "
                         f"the others")
    return graphs


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
