"""Loops compiled by numba for CPUs; attention takes one pass over the edges and keeps no weight."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.kernels import operators
from graphattn.kernels.backend import Backend, EdgeFeatures, LogitTerms
from graphattn.kernels.cpu import attention, diffusion, edge_dot, weights  # noqa: F401 (registers)
from graphattn.kernels.operators.attention import dropout_seed


def is_available(device: torch.device) -> bool:
    return device.type == 'cpu'


def attend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
           terms: LogitTerms) -> Tensor:
    no_features = EdgeFeatures(query.new_empty(*query.shape[:2], 0),
                               query.new_empty(graph.num_edges, 0))
    out, _ = attend_with_features(query, key, value, graph, no_features, terms)
    return out


def attend_with_features(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                         features: EdgeFeatures, terms: LogitTerms) -> tuple[Tensor, Tensor]:
    out, sums, _ = operators.edge_attention(
        query, key, value, *features, terms.bias, terms.gate, *graph.csr, *graph.blocks.ptrs,
        dropout_seed(terms.dropout_p), terms.scale, terms.dropout_p)
    return out, sums


def dot_on_edges(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    return operators.edge_dot(query, key, *graph.csr, *graph.blocks.ptrs)


def weigh(query: Tensor, key: Tensor, graph: BipartiteGraph, terms: LogitTerms) -> Tensor:
    """The weights of one head are contiguous in memory."""
    csc = _csc_for_gradients(graph, query, key, terms.bias, terms.gate)
    return operators.attention_weights(query, key, terms.bias, terms.gate, *graph.csr, *csc,
                                       terms.scale).t()


def sum_by_weights(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    csc = _csc_for_gradients(graph, weight, value)
    return operators.weighted_sum(weight.t().contiguous(), value, *graph.csr, *csc,
                                  *graph.blocks.ptrs)


def diffuse(weight: Tensor, value: Tensor, graph: BipartiteGraph, teleport: Tensor) -> Tensor:
    csc = _csc_for_gradients(graph, weight, value, teleport)
    out, _ = operators.attention_diffusion(
        weight.t().contiguous(), value, teleport, *graph.csr, *csc, csc[0].numel() > 0)
    return out


def attend_and_diffuse(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                       teleport: Tensor, terms: LogitTerms) -> Tensor:
    csc = _csc_for_gradients(graph, query, key, value, terms.bias, terms.gate, teleport)
    out, *_ = operators.diffused_attention(
        query, key, value, terms.bias, terms.gate, teleport, *graph.csr, *csc,
        dropout_seed(terms.dropout_p), terms.scale, terms.dropout_p,
        csc[0].numel() > 0)
    return out


def _csc_for_gradients(graph: BipartiteGraph,
                       *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The edges sorted by key; three empty tensors if no gradient is taken: sorting takes time."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return graph.csc
    return (graph.csr[0][:0],) * 3


__all__ = ['BACKEND']

BACKEND = Backend('numba', is_available, attention=attend, shares_keys=True,
                  attention_with_features=attend_with_features, attention_weights=weigh,
                  weighted_sum=sum_by_weights, attention_diffusion=diffuse,
                  diffused_attention=attend_and_diffuse, edge_dot=dot_on_edges)
