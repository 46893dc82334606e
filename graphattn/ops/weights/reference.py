"""The definitions of attention weights and of weighted sums of values, computed on all pairs of a
segment."""

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import LogitTerms
from graphattn.ops.dense import dense_segments, of_keys, on_pairs
from graphattn.ops.edge_dot.reference import edge_dot
from graphattn.ops.edge_math import edge_logit


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
