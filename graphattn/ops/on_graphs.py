"""The functions of :class:`~graphattn.ops.backend.Backend` for backends with compiled kernels.

With ``by_key``, operators get the edges in the order by key too, which gradients of keys may need.
Sorting takes time, so they get empty tensors if no gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.attention.schema import attend as attend_along
from graphattn.ops.attention.schema import (
    dropout_seed,
    edge_attention,
    edge_attention_backward,
)
from graphattn.ops.backend import Backend, LogitTerms
from graphattn.ops.diffusion.schema import attention_diffusion, diffused_attention
from graphattn.ops.weights.schema import (
    attention_weights,
    edge_dot,
    edge_dot_backward,
    weighted_sum,
)


def attend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph, terms: LogitTerms,
           *, by_key: bool) -> Tensor | tuple[Tensor, Tensor]:
    """Return ``[num_queries, heads, channels]``, and sums of features ``[..., size]`` if there are
    any."""
    features = terms.features or (None, None)
    inputs = (query, key, value, *features, terms.bias, terms.gate, terms.sink)
    seed = dropout_seed(terms.dropout_p, query.device)
    out, sums, _ = attend_along(*inputs, *_both_orders(graph, by_key and _needs_gradient(*inputs)),
                                *graph.segments.ptrs, seed, terms.scale, terms.softcap or 0.,
                                terms.dropout_p)
    out = out.to(query.dtype)
    return out if terms.features is None else (out, sums.to(query.dtype))


def attend_part(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                terms: LogitTerms, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    out, _, max_inv_sum = edge_attention(
        query, key, value, None, None, terms.bias, terms.gate, None, *_both_orders(graph, False),
        *graph.segments.ptrs, seed, terms.scale, terms.softcap or 0., terms.dropout_p)
    return out, max_inv_sum


def grads_of_part(of_queries: tuple[Tensor, ...], key: Tensor, value: Tensor,
                  graph: BipartiteGraph, terms: LogitTerms, seed: Tensor | None,
                  needs: tuple[bool, bool], *, by_key: bool) -> tuple[Tensor, ...]:
    grad_out, out, max_inv_sum, query = of_queries
    features = out.new_empty(*out.shape[:2], 0)
    grad_query, grad_key, grad_value, _, _, grad_bias, grad_gate, _ = edge_attention_backward(
        grad_out, features, out, features, max_inv_sum, query, key, value, None, None, terms.bias,
        terms.gate, None, *_both_orders(graph, by_key), *graph.segments.ptrs, seed, terms.scale,
        terms.softcap or 0., terms.dropout_p, True, True, True, False, False, *needs, False)
    return grad_query, grad_key, grad_value, grad_bias, grad_gate


def dot_on_edges(query: Tensor, key: Tensor, graph: BipartiteGraph, *, by_key: bool) -> Tensor:
    edges = _both_orders(graph, by_key and _needs_gradient(query, key))
    return edge_dot(query, key, *edges, *graph.segments.ptrs)


def grads_of_dot(grad: Tensor, query: Tensor, key: Tensor, graph: BipartiteGraph, *,
                 by_key: bool) -> tuple[Tensor, Tensor]:
    return edge_dot_backward(grad, query, key, *_both_orders(graph, by_key), *graph.segments.ptrs,
                             True, True)


def weigh(query: Tensor, key: Tensor, graph: BipartiteGraph, terms: LogitTerms) -> Tensor:
    """Return the attention weights ``[num_edges, heads]``, contiguous for each head."""
    inputs = query, key, terms.bias, terms.gate, terms.sink
    edges = _both_orders(graph, _needs_gradient(*inputs))
    weight, _ = attention_weights(*inputs, *edges, terms.scale, terms.softcap or 0.)
    return weight.t()


def sum_by_weights(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    edges = _both_orders(graph, _needs_gradient(weight, value))
    return weighted_sum(weight, value, *edges, *graph.segments.ptrs)


def diffuse(weight: Tensor, value: Tensor, graph: BipartiteGraph, teleport: Tensor) -> Tensor:
    edges = _both_orders(graph, _needs_gradient(weight, value, teleport))
    out, _ = attention_diffusion(weight.t().contiguous(), value, teleport, *edges,
                                 edges[2].numel() > 0)
    return out


def attend_and_diffuse(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                       teleport: Tensor, terms: LogitTerms) -> Tensor:
    inputs = query, key, value, terms.bias, terms.gate, terms.sink, teleport
    edges = _both_orders(graph, _needs_gradient(*inputs))
    out, *_ = diffused_attention(
        *inputs, *edges, dropout_seed(terms.dropout_p, query.device), terms.scale,
        terms.softcap or 0., terms.dropout_p, edges[2].numel() > 0)
    return out


def compiled_backend(name: str, is_available: Callable[[torch.device], bool], *, by_key: bool,
                     **limits: int) -> Backend:
    attention = partial(attend, by_key=by_key)
    return Backend(name, is_available, supports_gqa=True, attention=attention,
                   attention_with_features=attention, attention_part=attend_part,
                   attention_part_grads=partial(grads_of_part, by_key=by_key),
                   attention_weights=weigh, weighted_sum=sum_by_weights,
                   attention_diffusion=diffuse, diffused_attention=attend_and_diffuse,
                   edge_dot=partial(dot_on_edges, by_key=by_key),
                   edge_dot_grads=partial(grads_of_dot, by_key=by_key), **limits)


def _needs_gradient(*inputs: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


def _both_orders(graph: BipartiteGraph, by_key: bool) -> tuple[Tensor, ...]:
    # as registration.BOTH_ORDERS
    indptr, key = graph.csr
    return indptr, key, *(graph.csc if by_key else (indptr[:0],) * 3)
