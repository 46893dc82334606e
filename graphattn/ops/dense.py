"""Dense tensors of all pairs of a segment, for the definitions of operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph


# A tuple, because torch.compile cannot build other objects from symbolic slices.
def dense_segments(graph: BipartiteGraph) -> Iterator[tuple[slice, slice, slice, tuple, Tensor]]:
    """Yield slices of queries, keys and edges, the pair of each edge, and the mask of each
    segment."""
    # pairs count from the first nodes of the segment; the mask is bool [queries, keys, 1]
    edge_ptr = graph.indptr[graph.query_ptr]
    query, key = graph.query, graph.key
    pointers = [ptr.tolist() for ptr in (graph.query_ptr, graph.key_ptr, edge_ptr)]
    for begins_and_ends in zip(*(zip(ptr, ptr[1:]) for ptr in pointers)):
        queries, keys, edges = (slice(begin, end) for begin, end in begins_and_ends)
        at = (query[edges] - queries.start, key[edges] - keys.start)
        mask = torch.zeros(queries.stop - queries.start, keys.stop - keys.start, 1,
                           dtype=torch.bool, device=graph.device)
        mask[at] = True
        yield queries, keys, edges, at, mask


def on_pairs(on_edges: Tensor, at: tuple[Tensor, Tensor], mask: Tensor, fill: float) -> Tensor:
    """Return ``on_edges`` on the edges of a segment and ``fill`` on other pairs."""
    # [queries, keys, heads]
    pairs = on_edges.new_full((*mask.shape[:2], on_edges.size(1)), fill)
    return pairs.index_put(at, on_edges)


def of_keys(x: Tensor, mask: Tensor) -> Tensor:
    """Return the key's vector of every pair, ``[queries, keys, heads, channels]``, 0 without
    edge."""
    # set to 0 before a product, so that a NaN reaches only the queries that attend to this key, in
    # the forward and in the backward pass
    return torch.where(mask.unsqueeze(-1), x, 0)
