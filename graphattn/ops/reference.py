"""The definitions of operations on edges, on tensors of all pairs of a segment.

Tests compare all other backends with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import Backend, LogitTerms, has_values
from graphattn.ops.edge_math import edge_logit, restart


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """Return ``<query_i, key_j>`` of each edge, ``[num_edges, heads]``."""
    # Empty, so that query and key get gradients even if there are no segments.
    dot = [(query[:0] * key[:0]).sum(-1)]
    for queries, keys, _, at, mask in dense_segments(graph):
        pairs = torch.einsum('ihc,ijhc->ijh', query[queries], of_keys(key[keys], mask))
        dot.append(pairs[at])
    return torch.cat(dot)


def attention_weights(query: Tensor, key: Tensor, graph: BipartiteGraph,
                      terms: LogitTerms) -> Tensor:
    """Return ``softmax_j(softcap(gate_ij * <query_i, key_j> * scale) + bias_ij)`` of each edge."""
    logit = edge_logit(edge_dot(query, key, graph), terms)
    sink = None if terms.sink is None else terms.sink.expand(graph.num_queries, logit.size(1))
    weight = [logit[:0]]
    for queries, _, edges, at, mask in dense_segments(graph):
        pairs = on_pairs(logit[edges], at, mask, -torch.inf)
        if sink is not None:
            pairs = torch.cat([pairs, sink[queries].unsqueeze(1)], dim=1)
        # A query without edges has weights 0; its softmax would be 0 / 0.
        is_nothing = (pairs == -torch.inf).all(dim=1, keepdim=True)
        softmax = pairs.masked_fill(is_nothing, 0.).softmax(dim=1).masked_fill(is_nothing, 0.)
        weight.append(softmax[at])
    return torch.cat(weight)


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    """Return ``sum_j weight_ij * value_j``, ``[num_queries, heads, channels]``."""
    out = [weight[:0].unsqueeze(-1) * value[:0]]
    for _, keys, edges, at, mask in dense_segments(graph):
        pairs = on_pairs(weight[edges], at, mask, 0.)
        out.append(torch.einsum('ijh,ijhc->ihc', pairs, of_keys(value[keys], mask)))
    return torch.cat(out)


def diffuse(one_hop: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Tensor,
            teleport: Tensor) -> Tensor:
    """Return ``Z_K`` of the recursion ``Z_{k+1} = (1 - t) A Z_k + t V`` from ``Z_0 = V``."""
    # The expected value at the end of a random walk from the query, which ends after k hops with
    # probability teleport[k]. Its first hop is the last step, so teleports are used in reverse
    # order.
    z = value
    for t in reversed(teleport.unbind()):
        z = restart(one_hop(weight, z), value, t)
    return z


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


BACKEND = Backend('reference', has_values, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=edge_dot, has_all_derivatives=True)
