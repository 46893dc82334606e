"""Operators of diffusion over several hops.

The *message* of a hop is the weighted sum of values at each query, before it is mixed with the
original values. The backward pass needs the messages of all hops.
"""

from __future__ import annotations

from torch import Tensor

from graphattn.ops.registration import (
    BOTH_ORDERS,
    accumulation_dtype,
    define,
    define_gradients,
    empty_max_inv_sum,
)


def empty_results(given) -> tuple[Tensor, Tensor]:
    """Return the uninitialised output, and messages ``[hops or 0, heads, nodes, channels]``."""
    value = given.value
    nodes, heads, channels = value.shape
    hops = len(given.teleport) if given.keep_messages else 0
    return value.new_empty(value.shape), value.new_empty(hops, heads, nodes, channels,
                                                         dtype=accumulation_dtype(value))


# Results: the output [nodes, heads, channels] and, with keep_messages, the messages [hops, heads,
# nodes, channels].
attention_diffusion = define(
    'attention_diffusion',
    f'Tensor weight, Tensor value, Tensor teleport, {BOTH_ORDERS}, bool keep_messages',
    'out messages', empty_results)
define_gradients(attention_diffusion, 'weight value teleport', of='out', saved='messages')


# This operator computes weights and hops. Results: the output, row maxima and inverse sums [heads,
# nodes, 2] and, with keep_messages, the messages.


def _fake_diffused(given) -> tuple[Tensor, Tensor, Tensor]:
    out, messages = empty_results(given)
    return out, empty_max_inv_sum(given.query), messages


diffused_attention = define(
    'diffused_attention',
    f'''Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? gate, Tensor? sink,
        Tensor teleport, {BOTH_ORDERS}, Tensor? seed, float scale, float softcap, float dropout_p,
        bool keep_messages''', 'out max_inv_sum messages', _fake_diffused)
define_gradients(diffused_attention, 'query key bias gate sink value teleport', of='out',
                 saved='max_inv_sum messages')


def needs_weights(given) -> bool:
    """Return whether any gradient of the logits is needed."""
    return (given.needs_query or given.needs_key or given.needs_bias or given.needs_gate
            or given.needs_sink)
