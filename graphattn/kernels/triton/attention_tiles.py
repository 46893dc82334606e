"""Attention where edges stand close together: tensor cores multiply all pairs of a tile.

Rows of edges gather the vectors of each edge. Where some 64 rows have many edges in few tiles, as
along windows and in dense graphs, tiles take less time; each 64 rows are dealt with in one of the
two ways. Tiles without edges are passed over, and nothing of the size of all pairs is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.kernels.triton.launch import fp64, kernel, launch, u64, width_of
from graphattn.kernels.triton.rows import ROWS_OF_A_TILE, gather, put
from graphattn.kernels.triton.softmax import Terms, gates, kept, logits, put_statistics
from graphattn.kernels.triton.tiles import next_tile

_COLUMNS, _MOST_CHANNELS = 32, 64  # more take more registers than there are
# Edges that take as long by rows as a tile does, forward with backward. Computed, not measured, for
# 64 channels: python -m experiments.benchmarks.roofline.
EDGES_OF_A_TILE = 182


def choose(indptr: Tensor, column: Tensor, num_columns: int, channels: int,
           dtype: torch.dtype) -> Tensor | None:
    """Which 64 rows each are computed by tiles, bool; ``None`` where none can be."""
    if dtype.itemsize > 2 or channels > _MOST_CHANNELS:
        return None
    num_rows = indptr.numel() - 1
    num_programs = triton.cdiv(num_rows, ROWS_OF_A_TILE)
    is_tiled = torch.zeros(num_programs, dtype=torch.bool, device=indptr.device)
    launch(choose_tiles, (num_programs,), indptr, column, is_tiled, num_rows, num_columns,
           EDGES=EDGES_OF_A_TILE, ROWS=ROWS_OF_A_TILE, COLUMNS=_COLUMNS, num_warps=4)
    return is_tiled


def attend(is_tiled: Tensor, indptr: Tensor, edge_key: Tensor, nodes: list[Tensor], terms: Terms,
           out: Tensor, statistics: Tensor) -> None:
    """Puts output and softmax statistics of tiled rows where those of the others are."""
    query, key, value = nodes
    launch(attend_tiles, (is_tiled.numel(), query.size(1)), is_tiled, indptr, edge_key, *nodes,
           *terms, out, statistics, len(query), len(key), **_constants(query, key, value))


def grads_of_queries(is_tiled: Tensor, indptr: Tensor, edge_key: Tensor, nodes: list[Tensor],
                     terms: Terms, softmax: tuple[Tensor, ...],
                     grads: tuple[Tensor | None, ...]) -> None:
    """Puts the gradients of queries, bias and gate of tiled rows where those of the others are."""
    query, key, value, _ = nodes
    launch(grads_of_tiled_queries, (is_tiled.numel(), query.size(1)), is_tiled, indptr, edge_key,
           *nodes, *terms, *softmax, *grads, len(query), len(key), edge_key.numel(),
           **_constants(query, key, value))


def grads_of_keys(is_tiled: Tensor, edges: tuple[Tensor, Tensor, Tensor], nodes: list[Tensor],
                  terms: Terms, softmax: Tensor, grads: tuple[Tensor, Tensor]) -> None:
    """Puts the gradients of tiled keys and values where those of the others are."""
    query, key, value, _ = nodes
    launch(grads_of_tiled_keys, (is_tiled.numel(), key.size(1)), is_tiled, *edges, *nodes, *terms,
           softmax, *grads, len(key), len(query), **_constants(query, key, value))


def _constants(query: Tensor, key: Tensor, value: Tensor) -> dict[str, int]:
    (_, heads, channels), value_channels = query.shape, value.size(2)
    return dict(HEADS=heads, SHARING=heads // key.size(1), CHANNELS=channels,
                VALUE_CHANNELS=value_channels, ROWS=ROWS_OF_A_TILE, COLUMNS=_COLUMNS,
                WIDTH=width_of(channels), VALUE_WIDTH=width_of(value_channels), num_warps=8)


# Kernels #############################################################################


@kernel
def choose_tiles(indptr, column, is_tiled, num_rows, num_columns, EDGES: tl.constexpr,
                 ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Whether some rows have at least ``EDGES`` edges in each of their tiles, on average."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    edge = tl.load(indptr + row, mask=row < num_rows, other=0)
    end = tl.load(indptr + row + 1, mask=row < num_rows, other=0)
    most = tl.sum(end - edge, axis=0) // EDGES
    num_tiles = most * 0
    while (tl.max(end - edge, axis=0) > 0) & (num_tiles <= most):
        _, _, is_edge = next_tile(column, edge, end, num_columns, COLUMNS)
        edge += tl.sum(is_edge.to(tl.int32), axis=1)
        num_tiles += 1
    tl.store(is_tiled + tl.program_id(0), (num_tiles > 0) & (num_tiles <= most))


@triton.jit
def _tiled_rows(is_tiled, indptr, num_rows, ROWS: tl.constexpr):
    """The rows of this program, whether each is one, and where its edges begin and end; none where
    they are not tiled."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = (row < num_rows) & tl.load(is_tiled + tl.program_id(0))
    begin = tl.load(indptr + row, mask=is_row, other=0)
    end = tl.load(indptr + row + 1, mask=is_row, other=0)
    return row, is_row, begin, end


@kernel
def attend_tiles(
        is_tiled, indptr, edge_key, query, key, value, bias, gate, seed, bias_edge_stride,
        bias_head_stride, gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64,
        keep_scale: fp64, out, statistics, num_rows, num_columns,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Output and softmax statistics of some queries."""
    row, is_row, first, end = _tiled_rows(is_tiled, indptr, num_rows, ROWS)
    head = tl.program_id(1)
    key_head = head // SHARING
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_row, query.dtype.element_ty)
    high = tl.full([ROWS], float('-inf'), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    while tl.max(end - first, axis=0) > 0:
        j, step, is_edge = next_tile(edge_key, first, end, num_columns, COLUMNS)
        edge = first[:, None] + step
        key_j = gather(key, j, key_head, HEADS // SHARING, CHANNELS, WIDTH, j < num_columns,
                       key.dtype.element_ty)
        dot = tl.dot(query_i, tl.trans(key_j))
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, is_edge, head, tl.float32)
        higher = tl.maximum(high, tl.max(logit, axis=1))
        shift = tl.where(higher == float('-inf'), 0, higher)  # else -inf less -inf
        fading = tl.exp(high - shift)
        weight = tl.where(is_edge, tl.exp(logit - shift[:, None]), 0)
        total = total * fading + tl.sum(weight, axis=1)
        if seed is not None:
            weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
        value_j = gather(value, j, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH,
                         j < num_columns, tl.float32)
        sums = _add_product(sums * fading[:, None], weight, is_edge, value_j, COLUMNS)
        high = higher
        first += tl.sum(is_edge.to(tl.int32), axis=1)
    share = tl.where(total == 0, 0, 1 / total)
    put(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row, sums * share[:, None])
    put_statistics(statistics, row * HEADS + head, is_row, high, share)


@triton.jit
def _add_product(sums, weight, is_edge, x_j, COLUMNS: tl.constexpr):
    """Adds the product of matrices; what is not finite reaches rows that have an edge to it. In
    TF32 half precision loses nothing, and weights are the sum of two numbers that lose nothing
    either: rounded to one, they would no longer add up to what they are divided by."""
    x_j = x_j.to(tl.float32)
    if tl.max((x_j - x_j != 0).to(tl.int32)) == 0:
        high = (weight.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)
        low = tl.where(high - high == 0, weight - high, 0)  # inf less inf would be NaN
        sums = tl.dot(high, x_j, sums, input_precision='tf32')
        sums = tl.dot(low, x_j, sums, input_precision='tf32')
    else:
        for number in range(COLUMNS):
            is_it = tl.arange(0, COLUMNS) == number
            x = tl.sum(tl.where(is_it[:, None], x_j, 0), axis=0)
            of_x = tl.sum(tl.where(is_it[None, :], weight, 0), axis=1)
            has_edge = tl.max((is_it[None, :] & is_edge).to(tl.int32), axis=1) == 1
            sums += tl.where(has_edge[:, None], of_x[:, None] * x[None, :], 0)
    return sums


@kernel
def grads_of_tiled_queries(
        is_tiled, indptr, edge_key, query, key, value, grad_out, bias, gate, seed,
        bias_edge_stride, bias_head_stride, gate_edge_stride, gate_head_stride, scale: fp64,
        threshold: u64, keep_scale: fp64, out, statistics, softmax, grad_query, grad_bias,
        grad_gate, num_rows, num_columns, num_edges,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Gradients of some queries and of bias and gate of their edges; and, for the pass over keys,
    statistics and the mean gradient of weights of each query, side by side."""
    row, is_row, first, end = _tiled_rows(is_tiled, indptr, num_rows, ROWS)
    head = tl.program_id(1)
    key_head = head // SHARING
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_row, query.dtype.element_ty)
    grad_i = gather(grad_out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row,
                    value.dtype.element_ty)
    out_i = gather(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row, tl.float32)
    at = row * HEADS + head
    high = tl.load(statistics + 2 * at, mask=is_row, other=0)
    share = tl.load(statistics + 2 * at + 1, mask=is_row, other=0)
    delta = tl.sum(grad_i.to(tl.float32) * out_i, axis=1)
    tl.store(softmax + 4 * at, high, mask=is_row)
    tl.store(softmax + 4 * at + 1, share, mask=is_row)
    tl.store(softmax + 4 * at + 2, delta, mask=is_row)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    while tl.max(end - first, axis=0) > 0:
        j, step, is_edge = next_tile(edge_key, first, end, num_columns, COLUMNS)
        edge = first[:, None] + step
        key_j = gather(key, j, key_head, HEADS // SHARING, CHANNELS, WIDTH, j < num_columns,
                       key.dtype.element_ty)
        value_j = gather(value, j, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH,
                         j < num_columns, value.dtype.element_ty)
        dot = tl.dot(query_i, tl.trans(key_j))
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, is_edge, head, tl.float32)
        weight = tl.exp(logit - high[:, None]) * share[:, None]
        grad_weight = tl.dot(grad_i, tl.trans(value_j))
        if seed is not None:
            grad_weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
        grad_logit = tl.where(is_edge, weight * (grad_weight - delta[:, None]), 0)
        if grad_bias is not None:
            tl.store(grad_bias + head.to(tl.int64) * num_edges + edge, grad_logit, mask=is_edge)
        grad_dot = grad_logit * tl.full((), scale, tl.float32)
        if grad_gate is not None:
            tl.store(grad_gate + head.to(tl.int64) * num_edges + edge, grad_dot * dot,
                     mask=is_edge)
        if gate is not None:
            grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_edge, head,
                              tl.float32)
        sums = _add_product(sums, grad_dot, is_edge, key_j, COLUMNS)
        first += tl.sum(is_edge.to(tl.int32), axis=1)
    put(grad_query, row, head, HEADS, CHANNELS, WIDTH, is_row, sums)


@kernel
def grads_of_tiled_keys(
        is_tiled, indptr, edge_query, position, query, key, value, grad_out, bias, gate, seed,
        bias_edge_stride, bias_head_stride, gate_edge_stride, gate_head_stride, scale: fp64,
        threshold: u64, keep_scale: fp64, softmax, grad_key, grad_value, num_rows, num_columns,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Gradients of some keys and values."""
    row, is_row, begin, end = _tiled_rows(is_tiled, indptr, num_rows, ROWS)
    key_head = tl.program_id(1)
    key_j = gather(key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_row,
                   key.dtype.element_ty)
    value_j = gather(value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_row,
                     value.dtype.element_ty)
    key_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    value_sums = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for head in range(key_head * SHARING, (key_head + 1) * SHARING):
        first = begin
        while tl.max(end - first, axis=0) > 0:
            i, step, is_edge = next_tile(edge_query, first, end, num_columns, COLUMNS)
            is_query = i < num_columns
            edge = tl.load(position + first[:, None] + step, mask=is_edge, other=0).to(tl.int64)
            query_i = gather(query, i, head, HEADS, CHANNELS, WIDTH, is_query,
                             query.dtype.element_ty)
            grad_i = gather(grad_out, i, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_query,
                            value.dtype.element_ty)
            at = (i.to(tl.int64) * HEADS + head) * 4
            high = tl.load(softmax + at, mask=is_query, other=0)
            share = tl.load(softmax + at + 1, mask=is_query, other=0)
            delta = tl.load(softmax + at + 2, mask=is_query, other=0)
            dot = tl.dot(key_j, tl.trans(query_i))
            logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                           gate_head_stride, scale, edge, is_edge, head, tl.float32)
            weight = tl.where(is_edge, tl.exp(logit - high[None, :]) * share[None, :], 0)
            grad_weight = tl.dot(value_j, tl.trans(grad_i))
            used = weight
            if seed is not None:
                keep = kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
                grad_weight *= keep
                used = weight * keep
            grad_dot = tl.where(is_edge, weight * (grad_weight - delta[None, :]), 0)
            grad_dot *= tl.full((), scale, tl.float32)
            if gate is not None:
                grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_edge, head,
                                  tl.float32)
            key_sums = _add_product(key_sums, grad_dot, is_edge, query_i, COLUMNS)
            value_sums = _add_product(value_sums, used, is_edge, grad_i, COLUMNS)
            first += tl.sum(is_edge.to(tl.int32), axis=1)
    put(grad_key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_row, key_sums)
    put(grad_value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_row,
        value_sums)
