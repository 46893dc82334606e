"""Operators of attention in one pass over the edges, without materialised weights."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.edge_math import sink_grad
from graphattn.ops.registration import (
    GRAPH,
    accumulation_dtype,
    define,
    differentiate,
    differentiate_no_more,
    empty_unless,
    no_grad,
)

VALUES = 'Tensor query, Tensor key, Tensor value, Tensor? feature_query, Tensor? edge_attr'
INPUTS = f'''{VALUES}, Tensor? bias, Tensor? gate, Tensor? sink, {GRAPH}, Tensor? seed,
             float scale, float softcap, float dropout_p'''


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


def _fake_attention(query: Tensor, key: Tensor, value: Tensor, feature_query: Tensor | None,
                    *_) -> tuple[Tensor, Tensor, Tensor]:
    (num_queries, heads, _), dtype = query.shape, accumulation_dtype(query)
    size = 0 if feature_query is None else feature_query.size(2)
    return tuple(query.new_empty(num_queries, heads, width, dtype=dtype)
                 for width in (value.size(2), size, 2))


edge_attention = define('edge_attention', INPUTS, '(Tensor, Tensor, Tensor)', _fake_attention)


# Results: the gradients of query, key, value, feature_query, edge_attr, bias and gate. A gradient
# of the last four is empty if it is not needed.


def _fake_attention_backward(grad_out, grad_features, out, features, max_inv_sum, *inputs):
    query, key, value, feature_query, edge_attr, bias, gate, *_ = inputs
    *_, needs_attr, needs_bias, needs_gate = inputs
    return (*(tensor.new_empty(tensor.shape) for tensor in (query, key, value)),
            no_grad(query) if feature_query is None else torch.empty_like(feature_query),
            torch.empty_like(edge_attr) if needs_attr else no_grad(query),
            empty_unless(needs_bias, bias, max_inv_sum),
            empty_unless(needs_gate, gate, max_inv_sum))


edge_attention_backward = define(
    'edge_attention_backward',
    f'Tensor grad_out, Tensor? grad_features, Tensor out, Tensor features, Tensor max_inv_sum, '
    f'{INPUTS}, bool needs_attr, bool needs_bias, bool needs_gate',
    '(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)', _fake_attention_backward)
edge_attention_backward = differentiate_no_more(edge_attention_backward)


def _save_attention(ctx, inputs, output) -> tuple[Tensor, Tensor, Tensor] | None:
    *tensors, ctx.scale, ctx.softcap, ctx.dropout_p = inputs
    out, features, max_inv_sum = output
    ctx.mark_non_differentiable(max_inv_sum)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)
    dtype = inputs[0].dtype
    if dtype == out.dtype:
        return None
    # The caller gets the dtype of the query, so that gradients arrive in this dtype too. The
    # backward pass reads the sums as they were computed.
    return out.to(dtype), features.to(dtype), max_inv_sum


def _differentiate_attention(ctx, grad_out, grad_features, _) -> dict[str, Tensor]:
    if grad_out is None and grad_features is None:
        return {}
    saved = ctx.saved_tensors  # checkpoints allow one access
    (out, features, max_inv_sum, *_, feature_query), sink = saved[:7], saved[10]
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    if grad_features is None and feature_query is not None:
        grad_features = torch.zeros_like(features)
    grads = edge_attention_backward(grad_out, grad_features, *saved, ctx.scale, ctx.softcap,
                                    ctx.dropout_p, *ctx.needs_input_grad[4:7])
    names = 'query', 'key', 'value', 'feature_query', 'edge_attr', 'bias', 'gate'
    grad_of = dict(zip(names, grads))
    if ctx.needs_input_grad[7]:
        delta = (out * grad_out).sum(-1)
        if grad_features is not None:
            delta = delta + (features * grad_features).sum(-1)
        grad_of['sink'] = sink_grad(sink, max_inv_sum, delta)
    return grad_of


attend = differentiate(edge_attention, _differentiate_attention, _save_attention)


def dropout_seed(dropout_p: float, device: torch.device) -> Tensor | None:
    """Return a random seed for dropout, int64 ``[1]``, or None without dropout."""
    if dropout_p == 0:
        return None
    return torch.randint(-2**63, 2**63 - 1, (1,), device=device)
