"""Logits, softmax and dropout along the edges of one row at a time, in loops for CPUs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from graphattn.ops.cpu.jit import INLINE, jit_inline
from graphattn.ops.cpu.rows import whole_vectors
from graphattn.ops.cpu.simd import (
    LANES,
    add,
    exp,
    load,
    max_lane,
    maximum,
    splat,
    sum_lanes,
    tanh,
)
from graphattn.ops.cpu.splitmix import random_bits


class Terms(NamedTuple):
    """Terms of the logits and parameters of dropout, for a slice of the heads.

    A missing bias or gate is an empty array and not None, because numba compiles a loop again for
    each combination of types. A missing softcap is None, so that loops are compiled without it. A
    test in the compiled loops would have made the backward pass without a softcap 7 % slower.
    """

    bias: np.ndarray  # [num_edges, heads or 1], or empty
    gate: np.ndarray  # [num_edges, heads or 1], or empty
    scale: np.floating
    seed: np.uint64  # of dropout; random bits are numbered by edge and head
    threshold: np.uint64  # a weight is dropped if its random bits are below; 0 without dropout
    keep_scale: np.floating  # factor of a kept weight
    first_head: int  # of the slice
    num_heads: int  # of all slices
    softcap: np.floating | None

    @classmethod
    def of(cls, edge_bias: Tensor | None, edge_gate: Tensor | None, seed: Tensor | None,
           scale: float, dropout_p: float, dtype: torch.dtype, heads: slice, num_heads: int,
           softcap: float = 0.) -> Terms:
        """Return the terms of a slice of the heads, in ``dtype``.

        Args:
            edge_bias, edge_gate (Tensor, optional): ``[num_edges, num_heads or 1]``.
            seed (Tensor, optional): The seed of dropout, int64 ``[1]``.
            scale (float): Factor of the dot products.
            dropout_p (float): Probability that a weight is dropped.
            dtype (torch.dtype): float32 or float64.
            heads (slice): The heads.
            num_heads (int): Number of all heads.
            softcap (float): The softcap, or 0 for none.
        """
        nothing = _NOTHING[dtype]
        bias, gate = (nothing if values is None or _is_everywhere(values, neutral)
                      else _of_heads(values, heads, dtype)
                      for values, neutral in ((edge_bias, 0.), (edge_gate, 1.)))
        real = nothing.dtype.type
        seed = np.uint64(0 if seed is None else seed.item() % 2**64)
        return cls(bias, gate, real(scale), seed, np.uint64(int(dropout_p * 2**64)),
                   real(1 / (1 - dropout_p)), heads.start, num_heads,
                   real(softcap) if softcap > 0 else None)


_NOTHING = {dtype: torch.empty(0, 1, dtype=dtype, device='cpu').numpy()
            for dtype in (torch.float, torch.double)}


def _of_heads(values: Tensor, heads: slice, dtype: torch.dtype) -> np.ndarray:
    own = values.detach().to(dtype)[:, heads if values.size(1) > 1 else slice(None)]
    return own.contiguous().numpy()


def _is_everywhere(values: Tensor, number: float) -> bool:
    """Return whether ``values`` ``[num_edges, heads or 1]`` are one number that was expanded to all
    edges, and that equals ``number``. Straight-through estimators pass such gates, because they
    need only the gradient."""
    is_one_number = values.numel() > 0 and values.stride(0) == 0 and values.size(1) == 1
    return is_one_number and values[0, 0].item() == number


@jit_inline
def modify(logit, terms, first, n, head):
    """Replace the dot products in ``logit`` by logits, in place: apply scale, gate, softcap and
    bias. They belong to the ``n`` edges from ``first`` on, in one head."""
    scale, gate, bias = terms.scale, terms.gate, terms.bias
    for e in range(whole_vectors(n)):
        logit[e] *= scale
    if gate.shape[0] > 0:
        column = min(head, gate.shape[1] - 1)
        for e in range(n):
            logit[e] *= gate[first + e, column]
    cap(logit, terms.softcap, n)
    if bias.shape[0] > 0:
        column = min(head, bias.shape[1] - 1)
        for e in range(n):
            logit[e] += bias[first + e, column]


@jit_inline
def modify_backward(grad, dot, terms, grad_bias, grad_gate, first, n, head):
    """Replace the gradients of the logits in ``grad`` by the gradients of the dot products ``dot``,
    in place. They belong to the ``n`` edges from ``first`` on, in one head. The gradients of bias
    and gate are written too, unless ``grad_bias`` and ``grad_gate`` are empty."""
    if grad_bias.shape[0] > 0:
        for e in range(n):
            grad_bias[first + e, head] = grad[e]
    multiply_by_slope(grad, dot, terms.softcap, terms, first, n, head)
    if grad_gate.shape[0] > 0:
        for e in range(n):
            grad_gate[first + e, head] = grad[e] * dot[e] * terms.scale
    for e in range(whole_vectors(n)):
        grad[e] *= terms.scale
    multiply_by_gate(grad, terms, first, n, head)


def cap(logit, softcap, n):
    """Apply the softcap to the first ``n`` logits. Do nothing if ``softcap`` is None."""
    raise NotImplementedError  # compiled code calls the overload


@overload(cap, jit_options=INLINE)
def _overload_cap(logit, softcap, n):
    if softcap is types.none:
        return lambda logit, softcap, n: None

    def cap(logit, softcap, n):
        for e in range(whole_vectors(n)):
            logit[e] = softcap * tanh(logit[e] / softcap)
    return cap


def multiply_by_slope(grad, dot, softcap, terms, first, n, head):
    """Multiply the gradients of ``n`` edges by the derivative of the softcap at their dot products
    ``dot``. Do nothing if ``softcap`` is None."""
    raise NotImplementedError  # compiled code calls the overload


@overload(multiply_by_slope, jit_options=INLINE)
def _overload_multiply_by_slope(grad, dot, softcap, terms, first, n, head):
    if softcap is types.none:
        return lambda grad, dot, softcap, terms, first, n, head: None

    def multiply_by_slope(grad, dot, softcap, terms, first, n, head):
        gate, factor = terms.gate, terms.scale / softcap
        if gate.shape[0] > 0:
            column = min(head, gate.shape[1] - 1)
            for e in range(n):
                y = tanh(dot[e] * gate[first + e, column] * factor)
                grad[e] -= grad[e] * y * y
        else:
            for e in range(whole_vectors(n)):
                y = tanh(dot[e] * factor)
                grad[e] -= grad[e] * y * y
    return multiply_by_slope


@jit_inline
def multiply_by_gate(x, terms, first, n, head):
    gate = terms.gate
    if gate.shape[0] > 0:
        column = min(head, gate.shape[1] - 1)
        for e in range(n):
            x[e] *= gate[first + e, column]


@jit_inline
def exponentials(logit, n, row_max):
    """Replace the first ``n`` logits by ``exp(logit - m)``, where m is the maximum of ``row_max``
    and of these logits. Return m and the sum of the exponentials."""
    end, bottom = whole_vectors(n), logit.dtype.type(-np.inf)
    for e in range(n, end):
        logit[e] = bottom
    highest_lane = splat(row_max)
    for e in range(0, end, LANES):
        highest_lane = maximum(load(logit, e), highest_lane)
    row_max = max_lane(highest_lane)
    shift = row_max if row_max > bottom else logit.dtype.type(0)  # avoids -inf - -inf
    for e in range(end):
        logit[e] = exp(logit[e] - shift)
    row_sum = load(logit, 0)
    for e in range(LANES, end, LANES):
        row_sum = add(row_sum, load(logit, e))
    return row_max, sum_lanes(row_sum)


@jit_inline
def differentiate(dot, grad, weight, kept, first, n, row_max, inv_sum, delta, terms, head,
                  grad_bias, grad_gate):
    """Compute the gradients of the dot products of ``n`` edges of a query, and their weights.

    Before the call, ``dot`` has the dot products of the query with its keys, and ``grad`` has the
    dot products of the gradient of the output with the values. Afterwards, ``grad`` has the
    gradients of ``dot``, and ``weight`` has the weights after dropout.

    Args:
        kept: A workspace, which must be filled with ones if there is no dropout.
        first: The first of the edges.
        row_max: The maximum logit m of the query.
        inv_sum: 1 over the sum of ``exp(logit - m)``.
        delta: The sum of weight times gradient of the weight.
        terms: The terms of the logits.
        grad_bias, grad_gate: The gradients of bias and gate are written here, unless they are
            empty.
    """
    for e in range(whole_vectors(n)):
        weight[e] = dot[e]
    modify(weight, terms, first, n, head)
    if terms.threshold > 0:
        for e in range(n):
            kept[e] = keep(terms, first + e, head)
    for e in range(whole_vectors(n)):
        weight[e] = exp(weight[e] - row_max) * inv_sum
    for e in range(whole_vectors(n)):
        grad[e] = weight[e] * (grad[e] * kept[e] - delta)
        weight[e] *= kept[e]
    modify_backward(grad, dot, terms, grad_bias, grad_gate, first, n, head)


@jit_inline
def put_max_inv_sum(max_inv_sum, row, row_max, row_sum):
    """Write ``row_max`` and ``1 / row_sum``, the maximum logit of a row and the inverse of its sum
    of exponentials, to ``max_inv_sum[row]``. If the sum is 0, write ``inf`` and 0, so that
    recomputed weights are 0."""
    is_nothing = row_sum == 0
    max_inv_sum[row, 0] = np.inf if is_nothing else row_max
    max_inv_sum[row, 1] = 0 if is_nothing else 1 / row_sum


@jit_inline
def drop_out(weight, terms, first, n, head):
    """Apply dropout to the weights of the ``n`` edges from ``first`` on in one head, in place."""
    if terms.threshold > 0:
        for e in range(n):
            weight[e] *= keep(terms, first + e, head)


@jit_inline
def keep(terms, edge, head):
    """Return the factor of the weight of an edge and a head under dropout: 0, or ``1 / (1 -
    dropout_p)``."""
    bits = random_bits(terms.seed, edge * terms.num_heads + terms.first_head + head + 1)
    return terms.keep_scale if bits >= terms.threshold else terms.keep_scale * 0
