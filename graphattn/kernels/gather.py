"""Gather keys to edges, softmax, add messages up: plain torch, on any device.

Saves about three tensors of size edges x heads x channels for the backward pass; :mod:`csr` saves
none of them.
"""

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph


def attention_weights(
    query: Tensor,
    key: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    scale: float,
) -> Tensor:
    return edge_softmax(edge_logit(edge_dot(query, key, graph), edge_bias, edge_gate, scale), graph)


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    message = weight.unsqueeze(-1) * value[graph.key]
    return torch.segment_reduce(message, 'sum', offsets=graph.indptr, initial=0)


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """``<query_i, key_j>`` on every edge, ``[num_edges, heads]``."""
    return (query[graph.query] * key[graph.key]).sum(dim=-1)


def edge_logit(
    dot: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None, scale: float,
) -> Tensor:
    """``gate * dot * scale + bias``, ``[num_edges, heads]``."""
    logit = dot * scale
    if edge_gate is not None:
        logit = logit * edge_gate
    return logit if edge_bias is None else logit + edge_bias


def edge_softmax(logit: Tensor, graph: BipartiteGraph) -> Tensor:
    """Softmax of ``logit`` ``[num_edges, heads]`` over the keys of each query."""
    def reduce(values, how, initial):
        per_query = torch.segment_reduce(values, how, offsets=graph.indptr, initial=initial)
        return per_query[graph.query]

    weight = (logit - reduce(logit.detach(), 'max', -torch.inf)).exp()
    return weight / reduce(weight, 'sum', 0)


def restart(message: Tensor, start: Tensor, teleport: Tensor) -> Tensor:
    """``(1 - teleport) * message + teleport * start``: one hop of diffusion."""
    # The mask keeps a start that is not finite out of what never returns to it.
    return torch.where(teleport == 0, message, torch.lerp(message, start, teleport))
