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
    """Terms of the logits and parameters of dropout, for a slice of the heads."""

    # Empty arrays and not None, because numba compiles a loop again for each combination of types.
    bias: np.ndarray  # [num_edges, heads or 1], or empty
    gate: np.ndarray  # [num_edges, heads or 1], or empty
    scale: np.floating
    seed: np.uint64  # of dropout; random bits are numbered by edge and head
    threshold: np.uint64  # a weight is dropped if its random bits are below; 0 without dropout
    keep_scale: np.floating  # factor of a kept weight
    first_head: int  # of the slice
    num_heads: int  # of all slices
    # Loops are compiled without it if None; a test in them made the backward pass 7 % slower.
    softcap: np.floating | None

    @classmethod
    def of(cls, edge_bias: Tensor | None, edge_gate: Tensor | None, seed: Tensor | None,
           scale: float, dropout_p: float, dtype: torch.dtype, heads: slice, num_heads: int,
           softcap: float = 0.) -> Terms:
        # edge_bias, edge_gate: [num_edges, num_heads or 1]; seed: int64 [1]
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
    # straight-through estimators pass such gates, only for their gradient
    is_one_number = values.numel() > 0 and values.stride(0) == 0 and values.size(1) == 1
    return is_one_number and values[0, 0].item() == number


@jit_inline
def modify(logit, terms, first, n, head):
    """Replace the dot products of ``n`` edges from ``first`` on by logits, in place."""
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
    """Replace the gradients of ``n`` logits by those of the dot products, in place."""
    # gradients of bias and gate are written too, unless these are empty
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
    """Multiply gradients by the derivative of the softcap at the dot products, if there is one."""
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
    """Replace ``n`` logits by ``exp(logit - m)``, and return m and their sum."""
    # m is the maximum of row_max and of these logits
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
    """Replace ``grad``, of the weights of ``n`` edges of a query, by that of the dot products."""
    # Afterwards, ``weight`` has the weights after dropout. ``kept`` is a workspace of ones,
    # ``delta`` the sum of weight times gradient of the weight over all edges of the query.
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
    # inf and 0 for a sum of 0, so that recomputed weights are 0
    is_nothing = row_sum == 0
    max_inv_sum[row, 0] = np.inf if is_nothing else row_max
    max_inv_sum[row, 1] = 0 if is_nothing else 1 / row_sum


@jit_inline
def drop_out(weight, terms, first, n, head):
    if terms.threshold > 0:
        for e in range(n):
            weight[e] *= keep(terms, first + e, head)


@jit_inline
def keep(terms, edge, head):
    """Return the factor of a weight under dropout: 0, or ``1 / (1 - dropout_p)``."""
    bits = random_bits(terms.seed, edge * terms.num_heads + terms.first_head + head + 1)
    return terms.keep_scale if bits >= terms.threshold else terms.keep_scale * 0
