"""Operators of dot products on edges, of attention weights, and of weighted sums of values."""

from __future__ import annotations

from torch import Tensor

from graphattn.ops.edge_math import sink_grad
from graphattn.ops.registration import (
    BOTH_ORDERS,
    GRAPH,
    accumulation_dtype,
    define,
    define_gradients,
    differentiate,
    differentiate_no_more,
    empty_max_inv_sum,
)

# Result: <query_i, key_j> of every edge, [num_edges, heads].
edge_dot = define(
    'edge_dot', f'Tensor query, Tensor key, {GRAPH}', 'dot',
    lambda given: given.query.new_empty(given.edge_key.numel(), given.query.size(1)))
edge_dot_backward, _ = define_gradients(edge_dot, 'query key', of='dot')


# Results: the softmax of the logits over the keys of each query and its sink, [heads, num_edges];
# and row maxima and inverse sums, [heads, num_queries, 2].


def empty_weights(given) -> tuple[Tensor, Tensor]:
    query = given.query
    weight = query.new_empty(query.size(1), given.edge_key.numel(),
                             dtype=accumulation_dtype(query))
    return weight, empty_max_inv_sum(query)


attention_weights = define(
    'attention_weights', f'Tensor query, Tensor key, Tensor? bias, Tensor? gate, Tensor? sink, '
    f'{BOTH_ORDERS}, float scale, float softcap', 'weight max_inv_sum', empty_weights)
define_gradients(attention_weights, 'query key bias gate sink', of='weight',
                 saved='weight max_inv_sum')


def grad_of_sink(given, delta: Tensor) -> Tensor | None:
    # given: arguments of an operator for gradients; delta: the sum of weight times gradient of the
    # weight of each query, [num_queries, heads]
    if not given.needs_sink:
        return None
    return sink_grad(given.sink, given.max_inv_sum.transpose(0, 1), delta)


# Result: for each query, the weighted sum of the values of its keys. Weights are [heads,
# num_edges], in the order by query.


def _fake_sum(given) -> Tensor:
    return given.value.new_empty(given.indptr.numel() - 1, *given.value.shape[1:])


weighted_sum = define('weighted_sum', f'Tensor weight, Tensor value, {GRAPH}', 'out', _fake_sum)


# Result, the transpose of weighted_sum: for each key, the weighted sum of the rows of ``at_query``
# at its queries. Weights are in the order by query.


def _fake_sum_to_keys(given) -> Tensor:
    return given.at_query.new_empty(given.key_indptr.numel() - 1, *given.at_query.shape[1:])


sum_to_keys = differentiate_no_more(define(
    'sum_to_keys', 'Tensor weight, Tensor at_query, Tensor key_indptr, Tensor edge_query, '
    'Tensor perm', 'out', _fake_sum_to_keys))


def _save_sum(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_sum(ctx, grad: Tensor) -> dict[str, Tensor]:
    weight, value, *graph = ctx.saved_tensors
    needs_weight, needs_value, *_ = ctx.needs_input_grad
    return {'weight': edge_dot(grad, value, *graph).t() if needs_weight else None,
            'value': sum_to_keys(weight, grad, *graph[2:5]) if needs_value else None}


differentiate(weighted_sum, _differentiate_sum, _save_sum)
