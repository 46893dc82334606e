"""Dense tensors of all pairs of a segment, for the definitions of operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph


# A tuple, because torch.compile cannot build other objects from symbolic slices.
def dense_segments(graph: BipartiteGraph) -> Iterator[tuple[slice, slice, slice, tuple, Tensor]]:
    """Yield a tuple of five values for each sequence (segment) of the graph:

    - three slices: its queries, its keys and its edges;
    - a pair with the query and the key of each edge, counted from the first node of the segment;
    - the mask of its edges, bool ``[queries, keys, 1]``.
    """
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
    """Return a value for every pair of a sequence (segment), ``[queries, keys, heads]``: for an
    edge its value in ``on_edges`` ``[edges, heads]``, and for other pairs ``fill``. ``at`` and
    ``mask`` come from :func:`dense_segments`."""
    pairs = on_edges.new_full((*mask.shape[:2], on_edges.size(1)), fill)
    return pairs.index_put(at, on_edges)


def of_keys(x: Tensor, mask: Tensor) -> Tensor:
    """Return the vector of the key of every pair of a sequence (segment), ``[queries, keys, heads,
    channels]``, or 0 if the pair is not an edge.

    Pairs without an edge are set to 0 before they are multiplied. So a NaN in a key or value
    reaches only the queries that attend to this key, in the forward and in the backward pass.

    Args:
        x (Tensor): The vectors of the keys, ``[keys, heads, channels]``.
        mask (Tensor): The mask of :func:`dense_segments`.
    """
    return torch.where(mask.unsqueeze(-1), x, 0)
