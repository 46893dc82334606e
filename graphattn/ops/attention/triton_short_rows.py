"""Attention along rows of few edges in Triton. A program computes one row in several heads, edge by
edge.

It reads the vectors of all heads of a node together, because they are adjacent in memory, and the
edges only once. Kernels that gather many edges of one head waste most of them here.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.launch import fp64, kernel, launch, u64, width_of
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather, put
from graphattn.ops.triton.softmax import (
    before_softcap,
    gates,
    kept,
    logits,
    put_max_inv_sum,
    put_part,
)

# These kernels are faster if rows have fewer than FASTER_BELOW edges on average, and a program
# reads at most MAX_BYTES bytes of a node at once. Along longer rows, the kernels of one head find
# more vectors in the cache. With more bytes, a program needs too many registers. Both numbers are
# measured on an H100.
FASTER_BELOW, MAX_BYTES = 24, 2048
_VALUES = 1024  # that a program reads at once: channels of all its heads of a node


def are_faster(rows: Rows, key: Tensor, value: Tensor) -> bool:
    width = width_of(max(key.size(2), value.size(2)))
    num_bytes = min(triton.next_power_of_2(key.size(1)) * width, _VALUES) * key.element_size()
    return num_bytes <= MAX_BYTES and rows.num_edges < FASTER_BELOW * rows.num_rows


def launch_kernel(function: triton.runtime.KernelInterface, rows: Rows, nodes: list[Tensor],
                  *arguments, over_queries: bool = True, **constants: int) -> None:
    """Launch one of the kernels below, over rows of queries or of keys."""
    query, key, value = nodes[:3]
    width, value_width = width_of(query.size(2)), width_of(value.size(2))
    at_once = query.size(1) if over_queries else key.size(1)
    block = min(triton.next_power_of_2(at_once), _VALUES // max(width, value_width))
    num_values = block * (max(width, value_width) + constants.get('FEATURE_WIDTH', 0))
    num_warps = triton.next_power_of_2(triton.cdiv(num_values * query.element_size(), 1024))
    launch(function, (rows.tasks.number, triton.cdiv(at_once, block)), *rows.pointers(),
           *arguments, BLOCK=block, WIDTH=width, VALUE_WIDTH=value_width, **constants,
           num_warps=min(num_warps, 4))


# Kernels #############################################################################


@triton.jit
def _row_of_program(indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part):
    # scalars: the query, its edges, its place in the workspace of parts, whether there is a query,
    # and whether only a part of its edges is computed
    row, begin, end, slot, is_task, is_part = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, 1)
    return (tl.max(row, axis=0), tl.max(begin, axis=0), tl.max(end, axis=0), tl.max(slot, axis=0),
            tl.max(is_task.to(tl.int32), axis=0) != 0, tl.max(is_part.to(tl.int32), axis=0) != 0)


@kernel
def attend_short_rows(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, value, bias, gate, seed, bias_edge_stride, bias_head_stride, gate_edge_stride,
        gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, out, max_inv_sum, parts, feature_query, edge_attr, features,
        feature_parts, num_parts,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, FEATURES: tl.constexpr,
        FEATURE_WIDTH: tl.constexpr):
    """Kernel: write the output and the softmax sums of a query in ``BLOCK`` heads."""
    # Arguments as in attend_rows of attention/triton.py. For a part of a long row, sums go to
    # parts.
    row, begin, end, slot, is_task, is_part = _row_of_program(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = (head < HEADS) & is_task
    key_head = head // SHARING
    rows = row + tl.zeros([BLOCK], tl.int64)
    query_i = gather(query, rows, head, HEADS, CHANNELS, WIDTH, is_head, DTYPE)
    row_max = tl.full([BLOCK], float('-inf'), DTYPE)
    row_sum = tl.zeros([BLOCK], DTYPE)
    sums = tl.zeros([BLOCK, VALUE_WIDTH], DTYPE)
    if edge_attr is not None:
        feature_i = gather(feature_query, rows, head, HEADS, FEATURES, FEATURE_WIDTH, is_head,
                           DTYPE)
        feature_sums = tl.zeros([BLOCK, FEATURE_WIDTH], DTYPE)
    j = tl.load(edge_key + begin, mask=begin < end, other=0)
    for edge in range(begin, end):
        next_j = tl.load(edge_key + edge + 1, mask=edge + 1 < end, other=0)
        keys = j + tl.zeros([BLOCK], tl.int64)
        key_j = gather(key, keys, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_head, DTYPE)
        value_j = gather(value, keys, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH,
                         is_head, DTYPE)
        dot = tl.sum(query_i * key_j, axis=1)
        if edge_attr is not None:
            attr = _features(edge_attr, edge, FEATURES, FEATURE_WIDTH, DTYPE)
            dot += tl.sum(feature_i * attr, axis=1)
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, is_head, head, SOFTCAP, DTYPE)
        new_max = tl.maximum(row_max, logit)
        shift = tl.where(new_max == float('-inf'), 0, new_max)  # avoids -inf - -inf
        rescale = tl.exp(row_max - shift)
        weight = tl.exp(logit - shift)
        row_sum = row_sum * rescale + weight
        if seed is not None:
            weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
        sums = sums * rescale[:, None] + weight[:, None] * value_j
        if edge_attr is not None:
            feature_sums = feature_sums * rescale[:, None] + weight[:, None] * attr
        row_max = new_max
        j = next_j
    is_row = is_head & (is_part == 0)
    inv_sum = tl.where(row_sum == 0, 0, 1 / row_sum)
    put(out, rows, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row, sums * inv_sum[:, None])
    put_max_inv_sum(max_inv_sum, row * HEADS + head, is_row, row_max, inv_sum)
    slots = head * num_parts + slot
    put_part(parts, slots, is_head & is_part, sums, row_max, row_sum, VALUE_CHANNELS, VALUE_WIDTH)
    if edge_attr is not None:
        put(features, rows, head, HEADS, FEATURES, FEATURE_WIDTH, is_row,
            feature_sums * inv_sum[:, None])
        put_part(feature_parts, slots, is_head & is_part, feature_sums, row_max, row_sum, FEATURES,
                 FEATURE_WIDTH)


@triton.jit
def _features(edge_attr, edge, FEATURES: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    # [1, WIDTH], 0 from feature FEATURES on
    feature = tl.arange(0, WIDTH)[None, :]
    attr = tl.load(edge_attr + edge * FEATURES + feature, mask=feature < FEATURES, other=0)
    return attr.to(DTYPE)


@kernel
def grads_of_short_queries(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, value, grad_out, bias, gate, seed, bias_edge_stride, bias_head_stride,
        gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, out, max_inv_sum, softmax, grad_query, grad_bias, grad_gate, parts,
        feature_query, edge_attr, features, grad_features, grad_feature_query, feature_parts,
        grad_dots, weights, num_parts, num_edges,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, FEATURES: tl.constexpr,
        FEATURE_WIDTH: tl.constexpr):
    """Kernel: compute the gradients of a query in ``BLOCK`` heads, and of bias and gate."""
    # Arguments, softmax and results for features as in grads_of_queries of attention/triton.py.
    row, begin, end, slot, is_task, is_part = _row_of_program(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = (head < HEADS) & is_task
    key_head = head // SHARING
    rows = row + tl.zeros([BLOCK], tl.int64)
    query_i = gather(query, rows, head, HEADS, CHANNELS, WIDTH, is_head, DTYPE)
    grad_i = gather(grad_out, rows, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_head, DTYPE)
    out_i = gather(out, rows, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_head, DTYPE)
    at = row * HEADS + head
    row_max = tl.load(max_inv_sum + 2 * at, mask=is_head, other=0)
    inv_sum = tl.load(max_inv_sum + 2 * at + 1, mask=is_head, other=0)
    delta = tl.sum(grad_i * out_i, axis=1)
    if edge_attr is not None:
        feature_i = gather(feature_query, rows, head, HEADS, FEATURES, FEATURE_WIDTH, is_head,
                           DTYPE)
        grad_feature_i = gather(grad_features, rows, head, HEADS, FEATURES, FEATURE_WIDTH, is_head,
                                DTYPE)
        sums_i = gather(features, rows, head, HEADS, FEATURES, FEATURE_WIDTH, is_head, DTYPE)
        delta += tl.sum(grad_feature_i * sums_i, axis=1)
        feature_sums = tl.zeros([BLOCK, FEATURE_WIDTH], DTYPE)
    if softmax is not None:
        tl.store(softmax + 4 * at, row_max, mask=is_head)
        tl.store(softmax + 4 * at + 1, inv_sum, mask=is_head)
        tl.store(softmax + 4 * at + 2, delta, mask=is_head)
    sums = tl.zeros([BLOCK, WIDTH], DTYPE)
    j = tl.load(edge_key + begin, mask=begin < end, other=0)
    for edge in range(begin, end):
        next_j = tl.load(edge_key + edge + 1, mask=edge + 1 < end, other=0)
        keys = j + tl.zeros([BLOCK], tl.int64)
        key_j = gather(key, keys, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_head, DTYPE)
        value_j = gather(value, keys, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH,
                         is_head, DTYPE)
        dot = tl.sum(query_i * key_j, axis=1)
        grad_weight = tl.sum(grad_i * value_j, axis=1)
        if edge_attr is not None:
            attr = _features(edge_attr, edge, FEATURES, FEATURE_WIDTH, DTYPE)
            dot += tl.sum(feature_i * attr, axis=1)
            grad_weight += tl.sum(grad_feature_i * attr, axis=1)
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, is_head, head, SOFTCAP, DTYPE)
        weight = tl.exp(logit - row_max) * inv_sum
        used = weight
        if seed is not None:
            keep = kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
            grad_weight *= keep
            used = weight * keep
        grad_logit = weight * (grad_weight - delta)
        if grad_bias is not None:
            tl.store(grad_bias + head.to(tl.int64) * num_edges + edge, grad_logit, mask=is_head)
        grad_dot = before_softcap(grad_logit, dot, gate, gate_edge_stride, gate_head_stride, scale,
                                  edge, is_head, head, SOFTCAP, DTYPE)
        grad_dot *= tl.full((), scale, DTYPE)
        if grad_gate is not None:
            tl.store(grad_gate + head.to(tl.int64) * num_edges + edge, grad_dot * dot,
                     mask=is_head)
        if gate is not None:
            grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_head, head, DTYPE)
        sums += grad_dot[:, None] * key_j
        if edge_attr is not None:
            feature_sums += grad_dot[:, None] * attr
            at_edge = head.to(tl.int64) * num_edges + edge
            tl.store(grad_dots + at_edge, grad_dot, mask=is_head)
            tl.store(weights + at_edge, used, mask=is_head)
        j = next_j
    is_whole, slots = is_head & (is_part == 0), head * num_parts + slot
    put(grad_query, rows, head, HEADS, CHANNELS, WIDTH, is_whole, sums)
    put(parts, slots, 0, 1, CHANNELS, WIDTH, is_head & is_part, sums)
    if edge_attr is not None:
        put(grad_feature_query, rows, head, HEADS, FEATURES, FEATURE_WIDTH, is_whole, feature_sums)
        put(feature_parts, slots, 0, 1, FEATURES, FEATURE_WIDTH, is_head & is_part, feature_sums)


@kernel
def grads_of_short_keys(
        indptr, edge_query, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        perm,
        query, key, value, grad_out, bias, gate, seed, bias_edge_stride, bias_head_stride,
        gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, softmax, grad_dots, weights, grad_key, grad_value, parts,
        value_parts, num_parts, num_edges,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Kernel: compute the gradients of a key and its value in ``BLOCK`` heads."""
    # Arguments as in grads_of_keys of attention/triton.py; grad_dots and weights, written by
    # grads_of_short_queries, are used if given, else computed again from softmax.
    row, begin, end, slot, is_task, is_part = _row_of_program(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part)
    key_head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = (key_head < HEADS // SHARING) & is_task
    rows = row + tl.zeros([BLOCK], tl.int64)
    key_j = gather(key, rows, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_head, DTYPE)
    value_j = gather(value, rows, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_head,
                     DTYPE)
    key_sums = tl.zeros([BLOCK, WIDTH], DTYPE)
    value_sums = tl.zeros([BLOCK, VALUE_WIDTH], DTYPE)
    for share in range(SHARING):
        head = key_head * SHARING + share
        i = tl.load(edge_query + begin, mask=begin < end, other=0)
        for number in range(begin, end):
            next_i = tl.load(edge_query + number + 1, mask=number + 1 < end, other=0)
            edge = tl.load(perm + number).to(tl.int64)
            queries = i + tl.zeros([BLOCK], tl.int64)
            query_i = gather(query, queries, head, HEADS, CHANNELS, WIDTH, is_head, DTYPE)
            grad_i = gather(grad_out, queries, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_head,
                            DTYPE)
            if grad_dots is not None:
                at_edge = head.to(tl.int64) * num_edges + edge
                grad_dot = tl.load(grad_dots + at_edge, mask=is_head, other=0)
                used = tl.load(weights + at_edge, mask=is_head, other=0)
            else:
                at = (queries * HEADS + head) * 4
                row_max = tl.load(softmax + at, mask=is_head, other=0)
                inv_sum = tl.load(softmax + at + 1, mask=is_head, other=0)
                delta = tl.load(softmax + at + 2, mask=is_head, other=0)
                dot = tl.sum(query_i * key_j, axis=1)
                logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride,
                               gate_edge_stride, gate_head_stride, scale, edge, is_head, head,
                               SOFTCAP, DTYPE)
                weight = tl.exp(logit - row_max) * inv_sum
                grad_weight = tl.sum(grad_i * value_j, axis=1)
                used = weight
                if seed is not None:
                    keep = kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
                    grad_weight *= keep
                    used = weight * keep
                grad_dot = before_softcap(
                    weight * (grad_weight - delta), dot, gate, gate_edge_stride, gate_head_stride,
                    scale, edge, is_head, head, SOFTCAP, DTYPE)
                grad_dot *= tl.full((), scale, DTYPE)
                if gate is not None:
                    grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_head,
                                      head, DTYPE)
            key_sums += grad_dot[:, None] * query_i
            value_sums += used[:, None] * grad_i
            i = next_i
    is_whole = is_head & (is_part == 0)
    put(grad_key, rows, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_whole, key_sums)
    put(grad_value, rows, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_whole,
        value_sums)
    at = key_head * num_parts + slot
    put(parts, at, 0, 1, CHANNELS, WIDTH, is_head & is_part, key_sums)
    put(value_parts, at, 0, 1, VALUE_CHANNELS, VALUE_WIDTH, is_head & is_part, value_sums)
