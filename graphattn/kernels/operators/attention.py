"""Attention in one pass over the edges, and the dot products of queries and keys on them."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.kernels.operators.definition import (
    GRAPH,
    accumulation_dtype,
    define,
    differentiate,
    differentiate_no_more,
    empty_unless,
)

INPUTS = f'''Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? gate, {GRAPH},
             Tensor? seed, float scale, float dropout_p'''


# Output [num_queries, heads, value_channels] and softmax statistics [num_queries, heads, 2]: the
# highest logit, and 1 over the sum of exponentials less it. Their log-sum-exp, one number, would
# have the rounding of the logit, which may be larger than all of the sum.


def _fake_attention(query: Tensor, key: Tensor, value: Tensor, *_) -> tuple[Tensor, Tensor]:
    return (query.new_empty(*query.shape[:2], value.size(2)),
            query.new_empty(*query.shape[:2], 2, dtype=accumulation_dtype(query)))


edge_attention = define('edge_attention', INPUTS, '(Tensor, Tensor)', _fake_attention)


# Gradients of query, key, value, bias and gate; the last two empty where not needed.


def _fake_attention_backward(grad_out, out, statistics, query, key, value, bias, gate, *rest):
    *_, needs_bias, needs_gate = rest
    return (*(tensor.new_empty(tensor.shape) for tensor in (query, key, value)),
            empty_unless(needs_bias, bias, statistics), empty_unless(needs_gate, gate, statistics))


edge_attention_backward = define(
    'edge_attention_backward',
    f'Tensor grad_out, Tensor out, Tensor statistics, {INPUTS}, bool needs_bias, bool needs_gate',
    '(Tensor, Tensor, Tensor, Tensor, Tensor)', _fake_attention_backward)
differentiate_no_more(edge_attention_backward)


def _save_attention(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.dropout_p = inputs
    out, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, statistics, *tensors)


def _differentiate_attention(ctx, grad_out, _) -> dict[str, Tensor]:
    if grad_out is None:
        return {}
    *_, needs_bias, needs_gate = ctx.needs_input_grad[:5]
    grads = edge_attention_backward(grad_out, *ctx.saved_tensors, ctx.scale, ctx.dropout_p,
                                    needs_bias, needs_gate)
    return dict(zip(('query', 'key', 'value', 'bias', 'gate'), grads))


differentiate(edge_attention, _differentiate_attention, _save_attention)


# <query_i, key_j> on every edge, [num_edges, heads].


def _fake_dot(query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor, *_) -> Tensor:
    return query.new_empty(edge_key.numel(), query.size(1))


edge_dot = define('edge_dot', f'Tensor query, Tensor key, {GRAPH}', 'Tensor', _fake_dot)


def _fake_dot_backward(grad_dot: Tensor, query: Tensor, key: Tensor, *_) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


edge_dot_backward = define('edge_dot_backward',
                           f'Tensor grad_dot, Tensor query, Tensor key, {GRAPH}',
                           '(Tensor, Tensor)', _fake_dot_backward)
differentiate_no_more(edge_dot_backward)


def _save_dot(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_dot(ctx, grad_dot: Tensor) -> dict[str, Tensor]:
    return dict(zip(('query', 'key'), edge_dot_backward(grad_dot, *ctx.saved_tensors)))


differentiate(edge_dot, _differentiate_dot, _save_dot)


def dropout_seed(dropout_p: float) -> Tensor | None:
    """By which dropout is drawn, from torch's generator; none without dropout."""
    return torch.randint(-2**63, 2**63 - 1, (1,)) if dropout_p > 0 else None
