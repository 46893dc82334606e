"""Operators of the dot products of queries and keys on the edges of a graph."""

from __future__ import annotations

from torch import Tensor

from graphattn.ops.registration import (
    GRAPH,
    define,
    differentiate,
    differentiate_no_more,
)

# Result: <query_i, key_j> of every edge, [num_edges, heads].


def _fake_dot(query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor, *_) -> Tensor:
    return query.new_empty(edge_key.numel(), query.size(1))


edge_dot = define('edge_dot', f'Tensor query, Tensor key, {GRAPH}', 'Tensor', _fake_dot)


def _fake_dot_backward(grad_dot: Tensor, query: Tensor, key: Tensor, *_) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


edge_dot_backward = define('edge_dot_backward',
                           f'Tensor grad_dot, Tensor query, Tensor key, {GRAPH}',
                           '(Tensor, Tensor)', _fake_dot_backward)
edge_dot_backward = differentiate_no_more(edge_dot_backward)


def _save_dot(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_dot(ctx, grad_dot: Tensor) -> dict[str, Tensor]:
    return dict(zip(('query', 'key'), edge_dot_backward(grad_dot, *ctx.saved_tensors)))


differentiate(edge_dot, _differentiate_dot, _save_dot)
