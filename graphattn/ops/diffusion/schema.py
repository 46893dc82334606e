"""Operators of diffusion over several hops.

The *message* of a hop is the weighted sum of values at each query, before it is mixed with the
original values. The backward pass needs the messages of all hops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.registration import (
    BOTH_ORDERS,
    accumulation_dtype,
    define,
    differentiate,
    differentiate_no_more,
    empty_max_inv_sum,
    empty_unless,
)

DIFFUSED = f'''Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? gate, Tensor? sink,
               Tensor teleport, {BOTH_ORDERS}, Tensor? seed, float scale, float softcap,
               float dropout_p'''


# Results: the output [nodes, heads, channels] and, with keep_messages, the messages [hops, heads,
# nodes, channels].


def _fake_diffusion(weight: Tensor, value: Tensor, teleport: Tensor, *rest):
    return torch.empty_like(value), empty_messages(value, teleport, rest[-1])


attention_diffusion = define(
    'attention_diffusion',
    f'Tensor weight, Tensor value, Tensor teleport, {BOTH_ORDERS}, bool keep_messages',
    '(Tensor, Tensor)', _fake_diffusion)


# Results: the gradients of weight, value and teleport. A gradient that is not needed is empty.


def _fake_diffusion_backward(grad_out, messages, weight, value, teleport, *rest):
    *_, needs_weight, needs_teleport = rest
    return (weight.new_empty(weight.shape if needs_weight else 0), torch.empty_like(value),
            teleport.new_empty(teleport.shape if needs_teleport else 0))


attention_diffusion_backward = define(
    'attention_diffusion_backward',
    f'Tensor grad_out, Tensor messages, Tensor weight, Tensor value, Tensor teleport, '
    f'{BOTH_ORDERS}, bool needs_weight, bool needs_teleport', '(Tensor, Tensor, Tensor)',
    _fake_diffusion_backward)
attention_diffusion_backward = differentiate_no_more(attention_diffusion_backward)


def _save_diffusion(ctx, inputs, output) -> None:
    *tensors, _ = inputs
    _, messages = output
    ctx.mark_non_differentiable(messages)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(messages, *tensors)


def _differentiate_diffusion(ctx, grad_out, _) -> dict[str, Tensor]:
    if grad_out is None:
        return {}
    needs_weight, _, needs_teleport = ctx.needs_input_grad[:3]
    grads = attention_diffusion_backward(grad_out, *ctx.saved_tensors, needs_weight,
                                         needs_teleport)
    return dict(zip(('weight', 'value', 'teleport'), grads))


differentiate(attention_diffusion, _differentiate_diffusion, _save_diffusion)


# This operator computes weights and hops. Results: the output, row maxima and inverse sums [heads,
# nodes, 2] and, with keep_messages, the messages.


def _fake_diffused(query, key, value, bias, gate, sink, teleport, *rest):
    return (torch.empty_like(value), empty_max_inv_sum(query),
            empty_messages(value, teleport, rest[-1]))


diffused_attention = define('diffused_attention', f'{DIFFUSED}, bool keep_messages',
                            '(Tensor, Tensor, Tensor)', _fake_diffused)


# Results: the gradients of query, key, bias, gate, sink, value and teleport. A gradient that is not
# needed is empty.


def _fake_diffused_backward(grad_out, max_inv_sum, messages, query, key, value, bias, gate, sink,
                            teleport, *rest):
    *_, needs_bias, needs_gate, needs_sink, needs_teleport = rest
    return (torch.empty_like(query), torch.empty_like(key), empty_unless(needs_bias, bias, query),
            empty_unless(needs_gate, gate, query), empty_unless(needs_sink, sink, query),
            torch.empty_like(value),
            teleport.new_empty(teleport.shape if needs_teleport else 0))


diffused_attention_backward = define(
    'diffused_attention_backward',
    f'Tensor grad_out, Tensor max_inv_sum, Tensor messages, {DIFFUSED}, bool needs_weight, '
    f'bool needs_bias, bool needs_gate, bool needs_sink, bool needs_teleport',
    '(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)', _fake_diffused_backward)
diffused_attention_backward = differentiate_no_more(diffused_attention_backward)


def _save_diffused(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.softcap, ctx.dropout_p, _ = inputs
    _, max_inv_sum, messages = output
    ctx.mark_non_differentiable(max_inv_sum, messages)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(max_inv_sum, messages, *tensors)


def _differentiate_diffused(ctx, grad_out, *_) -> dict[str, Tensor]:
    if grad_out is None:
        return {}
    needs_query, needs_key, _, *needs_terms, needs_teleport = ctx.needs_input_grad[:7]
    needs_weight = needs_query or needs_key or any(needs_terms)
    grads = diffused_attention_backward(grad_out, *ctx.saved_tensors, ctx.scale, ctx.softcap,
                                        ctx.dropout_p, needs_weight, *needs_terms, needs_teleport)
    return dict(zip(('query', 'key', 'bias', 'gate', 'sink', 'value', 'teleport'), grads))


differentiate(diffused_attention, _differentiate_diffused, _save_diffused)


def empty_messages(value: Tensor, teleport: Tensor, keep_messages: bool) -> Tensor:
    """Return uninitialised messages, ``[hops or 0, heads, nodes, channels]``."""
    nodes, heads, channels = value.shape
    return value.new_empty(teleport.size(0) if keep_messages else 0, heads, nodes, channels,
                           dtype=accumulation_dtype(value))
