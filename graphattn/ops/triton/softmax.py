"""Logits, softmax and dropout in Triton kernels."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from graphattn._splitmix import FIRST, SECOND, STEP
from graphattn.ops.triton.launch import TYPES, kernel, launch, strides_of, width_of
from graphattn.ops.triton.rows import Tasks, parts_of_a_row, slot_of_part

# Kernels can read only those globals that are constexpr.
_STEP, _FIRST, _SECOND = map(tl.constexpr, (STEP, FIRST, SECOND))


class Terms(NamedTuple):
    """Terms of the attention logits, and the parameters of dropout, as kernels receive them."""

    bias: Tensor | None  # [num_edges, heads or 1]
    gate: Tensor | None
    seed: Tensor | None  # of dropout; the random bits are a function of seed, edge and head
    bias_edge_stride: int
    bias_head_stride: int
    gate_edge_stride: int
    gate_head_stride: int
    scale: float
    threshold: int  # a weight is dropped if its 64 random bits are below this number
    keep_scale: float  # factor of a kept weight, 1 / (1 - dropout_p)
    softcap: float  # 0 if there is none

    @classmethod
    def of(cls, bias: Tensor | None, gate: Tensor | None, seed: Tensor | None, scale: float,
           dropout_p: float, softcap: float = 0.) -> Terms:
        return cls(bias, gate, seed, *strides_of(bias), *strides_of(gate), float(scale),
                   int(dropout_p * 2**64), 1 / (1 - dropout_p), softcap)


@triton.jit
def logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
           gate_head_stride, scale, edge, inside, head, SOFTCAP: tl.constexpr,
           DTYPE: tl.constexpr):
    """Return the logits of edges, given their dot products; ``-inf`` if ``inside`` is false."""
    logit = dot * tl.full((), scale, DTYPE)
    if gate is not None:
        logit *= gates(gate, gate_edge_stride, gate_head_stride, edge, inside, head, DTYPE)
    if SOFTCAP > 0:
        logit = tanh(logit / tl.full((), SOFTCAP, DTYPE)) * tl.full((), SOFTCAP, DTYPE)
    if bias is not None:
        at = place(bias_edge_stride, bias_head_stride, edge, head)
        logit += tl.load(bias + at, mask=inside, other=0).to(DTYPE)
    return tl.where(inside, logit, float('-inf'))


@triton.jit
def before_softcap(grad, dot, gate, gate_edge_stride, gate_head_stride, scale, edge, inside, head,
                   SOFTCAP: tl.constexpr, DTYPE: tl.constexpr):
    """Return gradients before the softcap, given those of logits."""
    # without a softcap these are equal, and not masked by ``inside``
    if SOFTCAP > 0:
        bounded = logits(dot, None, gate, 0, 0, gate_edge_stride, gate_head_stride, scale, edge,
                         inside, head, SOFTCAP, DTYPE) / tl.full((), SOFTCAP, DTYPE)
        grad = tl.where(inside, grad - grad * bounded * bounded, 0)
    return grad


@triton.jit
def tanh(x):
    far = 1 - 2 / (tl.exp(2 * tl.abs(x)) + 1)
    y = tl.where(x < 0, -far, far)
    if x.dtype == tl.float32:  # 1 - 2 / ... loses digits near 0
        square = x * x
        series = x + x * square * (
            -1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
        y = tl.where(tl.abs(x) < 0.3, series, y)
    return y


@triton.jit
def gates(gate, edge_stride, head_stride, edge, inside, head, DTYPE: tl.constexpr):
    at = place(edge_stride, head_stride, edge, head)
    return tl.load(gate + at, mask=inside, other=0).to(DTYPE)


@triton.jit
def place(edge_stride, head_stride, edge, head):
    """Return the offset of the value of an edge and a head, 64 bits, as it may exceed 2**31."""
    return edge * edge_stride + head * tl.full((), head_stride, tl.int64)


@triton.jit
def kept(seed, threshold, keep_scale, edge, head, HEADS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the factor of each weight under dropout, decided by the same random bits as on
    CPUs."""
    number = (edge * HEADS + head + 1).to(tl.uint64)
    bits = mix(tl.load(seed).to(tl.uint64, bitcast=True) + number * _STEP)
    return tl.where(bits >= threshold.to(tl.uint64), tl.full((), keep_scale, DTYPE),
                    tl.full((), 0, DTYPE))


@triton.jit
def mix(bits):
    # the same as graphattn._splitmix.mix
    bits = (bits ^ (bits >> 30)) * _FIRST
    bits = (bits ^ (bits >> 27)) * _SECOND
    return bits ^ (bits >> 31)


@triton.jit
def put_max_inv_sum(max_inv_sum, at, mask, row_max, inv_sum):
    # inf and 0 for a row without edges, so that its weights are 0
    tl.store(max_inv_sum + 2 * at, tl.where(inv_sum == 0, float('inf'), row_max), mask=mask)
    tl.store(max_inv_sum + 2 * at + 1, inv_sum, mask=mask)


@triton.jit
def put_part(parts, slot, mask, sums, row_max, row_sum, CHANNELS: tl.constexpr,
             WIDTH: tl.constexpr):
    """Write weighted sums, maximum logit and sum of exponentials of parts to ``parts[slot]``."""
    channel, at = tl.arange(0, WIDTH), slot * (CHANNELS + 2)
    tl.store(parts + at[:, None] + channel[None, :], sums,
             mask=mask[:, None] & (channel < CHANNELS)[None, :])
    tl.store(parts + at + CHANNELS, row_max, mask=mask)
    tl.store(parts + at + CHANNELS + 1, row_sum, mask=mask)


def join(tasks: Tasks, parts: Tensor, out: Tensor, max_inv_sum: Tensor,
         num_tiles: Tensor | None = None) -> None:
    """Write the output of each row that was cut into parts, and its softmax sums."""
    # parts: [heads, parts, channels + 2]; num_tiles: rows in blocks above 0 are left out
    num_rows, heads, channels = out.shape
    launch(join_parts, (tasks.most * tasks.rows_of_each, heads), parts, out, max_inv_sum,
           tasks.more, tasks.place_of_more, num_tiles, parts.size(1), num_rows, tasks.max_more,
           HEADS=heads, CHANNELS=channels, WIDTH=width_of(channels), DTYPE=TYPES[parts.dtype],
           ROWS=tasks.rows_of_each)


@kernel
def join_parts(parts, out, max_inv_sum, more, place_of_more, num_tiles, num_parts, num_rows,
               max_more, HEADS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
               DTYPE: tl.constexpr, ROWS: tl.constexpr):
    """Kernel: join the parts of each long row for :func:`join`."""
    head = tl.program_id(1)
    row, has_parts, first, last = parts_of_a_row(more, place_of_more, num_tiles, num_rows, ROWS)
    if has_parts:
        channel = tl.arange(0, WIDTH)
        row_max = tl.full((), float('-inf'), DTYPE)
        row_sum = tl.zeros((), DTYPE)
        sums = tl.zeros([WIDTH], DTYPE)
        for number in range(first - 1, last):
            slot = head * num_parts + slot_of_part(number, first, max_more, ROWS)
            part = parts + slot * (CHANNELS + 2)
            part_max = tl.load(part + CHANNELS)
            new_max = tl.maximum(row_max, part_max)
            shift = tl.where(new_max == float('-inf'), 0, new_max)
            rescale, part_rescale = tl.exp(row_max - shift), tl.exp(part_max - shift)
            row_sum = row_sum * rescale + tl.load(part + CHANNELS + 1) * part_rescale
            sums = sums * rescale + part_rescale * tl.load(part + channel, mask=channel < CHANNELS,
                                                           other=0)
            row_max = new_max
        inv_sum = tl.where(row_sum == 0, 0, 1 / row_sum)
        at = row * HEADS + head
        tl.store(out + at * CHANNELS + channel, sums * inv_sum, mask=channel < CHANNELS)
        tl.store(max_inv_sum + 2 * at, tl.where(row_sum == 0, float('inf'), row_max))
        tl.store(max_inv_sum + 2 * at + 1, inv_sum)
