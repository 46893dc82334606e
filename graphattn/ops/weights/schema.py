"""Operators of attention weights of edges, and of weighted sums of values."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.edge_dot.schema import edge_dot
from graphattn.ops.registration import (
    BOTH_ORDERS,
    GRAPH,
    accumulation_dtype,
    define,
    differentiate,
    differentiate_no_more,
    empty_max_inv_sum,
    empty_unless,
)

LOGITS = 'Tensor query, Tensor key, Tensor? bias, Tensor? gate, Tensor? sink'


# Results: the softmax of the logits over the keys of each query and its sink, [heads, num_edges];
# and row maxima and inverse sums, [heads, num_queries, 2].


def _fake_weights(query: Tensor, key: Tensor, bias: Tensor | None, gate: Tensor | None,
                  sink: Tensor | None, indptr: Tensor, edge_key: Tensor,
                  *_) -> tuple[Tensor, Tensor]:
    weight = query.new_empty(query.size(1), edge_key.numel(), dtype=accumulation_dtype(query))
    return weight, empty_max_inv_sum(query)


attention_weights = define('attention_weights', f'{LOGITS}, {BOTH_ORDERS}, float scale, '
                           f'float softcap', '(Tensor, Tensor)', _fake_weights)


# Results: the gradients of query, key, bias, gate and sink. The last three are empty if they are
# not needed.


def _fake_weights_backward(grad, weight, max_inv_sum, query, key, bias, gate, sink,
                           *rest) -> tuple[Tensor, ...]:
    *_, needs_bias, needs_gate, needs_sink = rest
    return (torch.empty_like(query), torch.empty_like(key), empty_unless(needs_bias, bias, query),
            empty_unless(needs_gate, gate, query), empty_unless(needs_sink, sink, query))


attention_weights_backward = define(
    'attention_weights_backward',
    f'Tensor grad, Tensor weight, Tensor max_inv_sum, {LOGITS}, {BOTH_ORDERS}, float scale, '
    f'float softcap, bool needs_bias, bool needs_gate, bool needs_sink',
    '(Tensor, Tensor, Tensor, Tensor, Tensor)', _fake_weights_backward)
attention_weights_backward = differentiate_no_more(attention_weights_backward)


def _save_weights(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.softcap = inputs
    _, max_inv_sum = output
    ctx.mark_non_differentiable(max_inv_sum)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)


def _differentiate_weights(ctx, grad: Tensor | None, _) -> dict[str, Tensor]:
    if grad is None:
        return {}
    grads = attention_weights_backward(grad, *ctx.saved_tensors, ctx.scale, ctx.softcap,
                                       *ctx.needs_input_grad[2:5])
    return dict(zip(('query', 'key', 'bias', 'gate', 'sink'), grads))


differentiate(attention_weights, _differentiate_weights, _save_weights)


# Result: for each query, the weighted sum of the values of its keys. Weights are [heads,
# num_edges], in the order by query.


def _fake_sum(weight: Tensor, value: Tensor, indptr: Tensor, *_) -> Tensor:
    return value.new_empty(indptr.numel() - 1, *value.shape[1:])


weighted_sum = define('weighted_sum', f'Tensor weight, Tensor value, {GRAPH}', 'Tensor', _fake_sum)


# Result, the transpose of weighted_sum: for each key, the weighted sum of the rows of ``at_query``
# at its queries. Weights are in the order by query.


def _fake_sum_to_keys(weight: Tensor, at_query: Tensor, key_indptr: Tensor, *_) -> Tensor:
    return at_query.new_empty(key_indptr.numel() - 1, *at_query.shape[1:])


sum_to_keys = define('sum_to_keys', 'Tensor weight, Tensor at_query, Tensor key_indptr, '
                     'Tensor edge_query, Tensor perm', 'Tensor', _fake_sum_to_keys)
sum_to_keys = differentiate_no_more(sum_to_keys)


def _save_sum(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_sum(ctx, grad: Tensor) -> dict[str, Tensor]:
    weight, value, *graph = ctx.saved_tensors
    needs_weight, needs_value, *_ = ctx.needs_input_grad
    return {'weight': edge_dot(grad, value, *graph).t() if needs_weight else None,
            'value': sum_to_keys(weight, grad, *graph[2:5]) if needs_value else None}


differentiate(weighted_sum, _differentiate_sum, _save_sum)
