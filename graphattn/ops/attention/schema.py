"""Operators of attention in one pass over the edges, without materialised weights."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.edge_math import sink_grad
from graphattn.ops.registration import GRAPH, accumulation_dtype, define, define_gradients

# Arguments: keys and values may have fewer heads than queries. Then several consecutive heads of
# queries share a head of keys and values. Edges may have features, ``edge_attr`` [num_edges, size].
# Their dot products with ``feature_query`` [num_queries, heads, size] are added to the dot products
# of queries and keys. Without features, both are None. Sinks are [num_queries or 1, heads]. A
# softcap of 0 means none.
#
# Results, all in the accumulation dtype, because gradients of logits are small differences that
# half precision would lose:
# - the output, [num_queries, heads, value_channels];
# - the weighted sums of features, [num_queries, heads, size], where size is 0 without features;
# - the row maxima and inverse sums, [num_queries, heads, 2]: the maximum logit m of the edges of a
#   query, and 1 over the sum of exp(logit - m), sink included. A log-sum-exp would have the
#   rounding error of a logit, which may be larger than this sum.


def _fake(given) -> list[Tensor]:
    (num_queries, heads, _), dtype = given.query.shape, accumulation_dtype(given.query)
    size = 0 if given.feature_query is None else given.feature_query.size(2)
    return [given.query.new_empty(num_queries, heads, width, dtype=dtype)
            for width in (given.value.size(2), size, 2)]


edge_attention = define(
    'edge_attention',
    f'''Tensor query, Tensor key, Tensor value, Tensor? feature_query, Tensor? edge_attr,
        Tensor? bias, Tensor? gate, Tensor? sink, {GRAPH}, Tensor? seed,
        float scale, float softcap, float dropout_p''',
    'out features max_inv_sum', _fake)
edge_attention_backward, attend = define_gradients(
    edge_attention, 'query key value feature_query edge_attr bias gate sink', of='out features',
    saved='out features max_inv_sum', rounds=True)


def grad_of_sink(given) -> Tensor | None:
    # given: arguments of edge_attention_backward
    if not given.needs_sink:
        return None
    delta = (given.out * given.grad_out).sum(-1)
    if given.edge_attr is not None:
        delta = delta + (given.features * given.grad_features).sum(-1)
    return sink_grad(given.sink, given.max_inv_sum, delta)


def dropout_seed(dropout_p: float, device: torch.device) -> Tensor | None:
    """Return a random seed for dropout, int64 ``[1]``, or None without dropout."""
    if dropout_p == 0:
        return None
    return torch.randint(-2**63, 2**63 - 1, (1,), device=device)
