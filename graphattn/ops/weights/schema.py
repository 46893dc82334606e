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


# Result: for each query, the weighted sum of the values of its keys. Weights, as their gradients,
# are [num_edges, heads].
weighted_sum = define(
    'weighted_sum', f'Tensor weight, Tensor value, {GRAPH}', 'out',
    lambda given: given.value.new_empty(given.indptr.numel() - 1, *given.value.shape[1:]))
define_gradients(weighted_sum, 'weight value', of='out')
