"""Attention in plain torch, on any device: keys are gathered to edges, weighted values are summed.

It supports all derivatives, and saves about three tensors of edges x heads x channels for the
backward pass.
"""

from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import Backend, LogitTerms, everywhere
from graphattn.ops.edge_math import edge_logit, edge_softmax


def attention_weights(query: Tensor, key: Tensor, graph: BipartiteGraph,
                      terms: LogitTerms) -> Tensor:
    logit = edge_logit(edge_dot(query, key, graph), terms)
    return edge_softmax(logit, graph.query, graph.num_queries, terms.sink)


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    message = weight.unsqueeze(-1) * value.index_select(0, graph.key)
    out = message.new_zeros(graph.num_queries, *message.shape[1:])
    return out.index_add(0, graph.query, message)


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """Return the dot product ``<query_i, key_j>`` of each edge, ``[num_edges, heads]``."""
    query_i, key_j = query.index_select(0, graph.query), key.index_select(0, graph.key)
    return (query_i * key_j).sum(dim=-1)


BACKEND = Backend('gather', everywhere, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=edge_dot, has_all_derivatives=True)
