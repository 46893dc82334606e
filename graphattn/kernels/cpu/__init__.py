"""Compiled by numba for CPUs: one pass over the edges, no weight kept."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.kernels import operators
from graphattn.kernels.backend import Backend, LogitTerms
from graphattn.kernels.cpu import attention, diffusion, edge_dot, weights  # noqa: F401 (registers)
from graphattn.kernels.operators.attention import dropout_seed


def is_available(device: torch.device) -> bool:
    return device.type == 'cpu'


def attend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
           terms: LogitTerms) -> Tensor:
    out, _ = operators.edge_attention(
        query, key, value, terms.bias, terms.gate, *graph.csr, graph.query_ptr, graph.key_ptr,
        dropout_seed(terms.dropout_p), terms.scale, terms.dropout_p)
    return out


def dot_on_edges(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    return operators.edge_dot(query, key, *graph.csr, graph.query_ptr, graph.key_ptr)


def weigh(query: Tensor, key: Tensor, graph: BipartiteGraph, terms: LogitTerms) -> Tensor:
    """Heads lie apart in memory."""
    by_key = _order_by_key(graph, query, key, terms.bias, terms.gate)
    return operators.attention_weights(query, key, terms.bias, terms.gate, *graph.csr,
                                                 *by_key, terms.scale).t()


def sum_by_weights(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    by_key = _order_by_key(graph, weight, value)
    return operators.weighted_sum(weight.t().contiguous(), value, *graph.csr, *by_key,
                                            graph.query_ptr, graph.key_ptr)


def diffuse(weight: Tensor, value: Tensor, graph: BipartiteGraph, teleport: Tensor) -> Tensor:
    by_key = _order_by_key(graph, weight, value, teleport)
    out, _ = operators.attention_diffusion(
        weight.t().contiguous(), value, teleport, *graph.csr, *by_key, by_key[0].numel() > 0)
    return out


def attend_and_diffuse(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                       teleport: Tensor, terms: LogitTerms) -> Tensor:
    by_key = _order_by_key(graph, query, key, value, terms.bias, terms.gate, teleport)
    out, *_ = operators.diffused_attention(
        query, key, value, terms.bias, terms.gate, teleport, *graph.csr, *by_key,
        dropout_seed(terms.dropout_p), terms.scale, terms.dropout_p,
        by_key[0].numel() > 0)
    return out


def _order_by_key(graph: BipartiteGraph, *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed graph, which takes time and is for gradients only."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return graph.csc
    return (graph.indptr[:0],) * 3


__all__ = ['BACKEND']

BACKEND = Backend('numba', is_available, attention=attend, attention_weights=weigh,
                  weighted_sum=sum_by_weights, attention_diffusion=diffuse,
                  diffused_attention=attend_and_diffuse, edge_dot=dot_on_edges)
