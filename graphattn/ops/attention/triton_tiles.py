"""Attention along locally dense edges in Triton: tensor cores multiply all pairs of a tile of 64
rows.

Each kernel has the three loops of :mod:`graphattn.ops.triton.tiles`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton import tiles as plans
from graphattn.ops.triton.launch import fp64, kernel, launch, u64, width_of
from graphattn.ops.triton.rows import ROWS_OF_A_TILE, Rows, gather, put
from graphattn.ops.triton.softmax import (
    Terms,
    before_softcap,
    gates,
    join,
    kept,
    logits,
    put_max_inv_sum,
    put_part,
)
from graphattn.ops.triton.tiles import (
    COLUMNS,
    EXACT,
    FULL,
    LOOPS,
    Tiles,
    add_edge_by_edge,
    not_finite,
    pairs_of_tile,
    tiles_of_task,
    vectors_of_block,
)

# By the number of channels: the number of edges that the kernels over rows compute in the time of
# one tile, forward and backward. With more channels, a program would need more registers than a GPU
# has.
EDGES_OF_A_TILE = {16: 120, 32: 130, 64: 110, 128: 120}
# The fractions that a bias or gate, and dropout, add to this number.
_MORE_WITH_LOGITS, _MORE_WITH_DROPOUT = 0.25, 0.25
_FEW_CHANNELS = 64  # up to which the registers of four warps are enough for all sums
# With so many, a multiprocessor runs three programs. Only the loop edge by edge would take more.
_FEW_REGISTERS = 168
STAGES = 2  # of the pipeline that loads the vectors of the next tile
_ONES = tl.constexpr(16)  # the fewest columns that tensor cores multiply


def plan(indptr: Tensor, column: Tensor, num_columns: int, heads: int, channels: int,
         dtype: torch.dtype, terms: Terms) -> Tiles | None:
    """Return the tiles that kernels over tiles compute, or None if dtype or sizes show that none
    is."""
    # channels: the largest number of channels of a query, key or value
    edges = edges_of_a_tile(channels, dtype, terms)
    return None if edges is None else plans.plan(indptr, column, num_columns, heads, edges)


def edges_of_a_tile(channels: int, dtype: torch.dtype, terms: Terms) -> int | None:
    """Return the edges of a tile from which on tiles are faster than rows, None if unsupported."""
    width = width_of(channels)
    if dtype.itemsize > 2 or width not in EDGES_OF_A_TILE:
        return None
    return int(EDGES_OF_A_TILE[width] * (1 + _MORE_WITH_LOGITS * _has_logits_of_edges(terms)
                                         + _MORE_WITH_DROPOUT * (terms.seed is not None)))


def attend(tiles: Tiles, rows: Rows, nodes: list[Tensor], terms: Terms, out: Tensor,
           max_inv_sum: Tensor) -> None:
    """Write ``out`` and ``max_inv_sum`` of the queries in ``tiles``."""
    # nodes: query, key and value
    (query, key, value), tasks = nodes, tiles.tasks
    parts = tasks.parts(query.size(1), value.size(2) + 2, out.dtype)
    launch(attend_tiles, (tasks.number, query.size(1)), *tiles.pointers(rows), *nodes,
           *terms, out, max_inv_sum, parts, parts.size(1), len(key),
           **_constants(query, key, value, terms), **_resources(terms, value))
    join(tasks, parts, out, max_inv_sum)


def grads_of_queries(tiles: Tiles, rows: Rows, nodes: list[Tensor], terms: Terms,
                     softmax: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]) -> None:
    """Write the gradients of the queries in ``tiles``, and of the bias and gate of their edges."""
    # softmax: the output, max_inv_sum, and [num_queries, heads, 4] that is filled for grads_of_keys
    (query, key, value, _), tasks = nodes, tiles.tasks
    parts = tasks.parts(query.size(1), query.size(2), softmax[-1].dtype)
    launch(grads_of_tiled_queries, (tasks.number, query.size(1)), *tiles.pointers(rows), *nodes,
           *terms, *softmax, *grads, parts, parts.size(1), len(key), rows.num_edges,
           **_constants(query, key, value, terms, grads[1:]), **_resources(terms, key))
    tasks.add(parts, grads[0])


def grads_of_keys(tiles: Tiles, rows: Rows, perm: Tensor, nodes: list[Tensor], terms: Terms,
                  softmax: Tensor, grads: tuple[Tensor, Tensor]) -> None:
    """Write the gradients of the keys in ``tiles``, whose rows are keys, and of their values."""
    (query, key, value, _), tasks = nodes, tiles.tasks
    all_parts = [tasks.parts(key.size(1), grad.size(2), softmax.dtype) for grad in grads]
    launch(grads_of_tiled_keys, (tasks.number, key.size(1)), *tiles.pointers(rows), perm,
           *nodes, *terms, softmax, *grads, *all_parts, all_parts[0].size(1), len(query),
           **_constants(query, key, value, terms), **_resources(terms, key, value))
    for parts, grad in zip(all_parts, grads):
        tasks.add(parts, grad)


def _constants(query: Tensor, key: Tensor, value: Tensor, terms: Terms,
               grads: tuple[Tensor | None, ...] = ()) -> dict[str, int]:
    (_, heads, channels), value_channels = query.shape, value.size(2)
    has_values = _has_logits_of_edges(terms) or grads != (None,) * len(grads)
    return dict(HEADS=heads, SHARING=heads // key.size(1), CHANNELS=channels,
                VALUE_CHANNELS=value_channels, ROWS=ROWS_OF_A_TILE, COLUMNS=COLUMNS,
                WIDTH=width_of(channels), VALUE_WIDTH=width_of(value_channels),
                NEEDS_EDGES=has_values or terms.seed is not None,
                # A pipeline would load the values of single edges through shared memory.
                STAGES=1 if has_values else STAGES)


def _resources(terms: Terms, *summed: Tensor) -> dict[str, int]:
    width, is_plain = sum(width_of(x.size(2)) for x in summed), not _has_logits_of_edges(terms)
    is_light, warps = width <= _FEW_CHANNELS and is_plain, ROWS_OF_A_TILE // 16
    if width > 2 * _FEW_CHANNELS or not (is_plain and (is_light or terms.seed is None)):
        return dict(num_warps=2 * warps)
    return dict(num_warps=warps, maxnreg=_FEW_REGISTERS) if is_light else dict(num_warps=warps)


def _has_logits_of_edges(terms: Terms) -> bool:
    return terms.bias is not None or terms.gate is not None


# Kernels #############################################################################


@kernel
def attend_tiles(
        indptr, num_tiles, num_full, first_tile, column_of, bits, edge_of, more, place_of_more,
        num_rows, num_places, max_more, query, key, value, bias, gate, seed, bias_edge_stride,
        bias_head_stride, gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64,
        keep_scale: fp64, SOFTCAP: tl.constexpr, out, max_inv_sum, parts, num_parts, num_columns,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, NEEDS_EDGES: tl.constexpr,
        STAGES: tl.constexpr):
    """Kernel: write the output and the softmax sums of a block of queries in one head."""
    # up to max_more: Tiles.pointers; bias to SOFTCAP: Terms; constants: of _constants. For a part
    # of a block, sums over its tiles go to ``parts``.
    first_row, is_row, base, begin, full, end, slot, is_cut = tiles_of_task(
        indptr, num_tiles, num_full, first_tile, more, place_of_more, num_rows, num_places,
        max_more, ROWS)
    head = tl.program_id(1)
    key_head = head // SHARING
    row = first_row + tl.arange(0, ROWS)
    query_i = vectors_of_block(query, first_row, num_rows, head, HEADS, CHANNELS, ROWS, WIDTH,
                               False)
    row_max = tl.full([ROWS], float('-inf'), tl.float32)
    row_sums = tl.zeros([ROWS, _ONES], tl.float32)  # in each column
    sums = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    ones = tl.full([COLUMNS, _ONES], 1, tl.float32).to(value.dtype.element_ty)
    for loop in tl.static_range(LOOPS):
        low, high = (full, end) if loop == FULL else (begin, full)
        if loop == EXACT:
            is_wrong = not_finite(sums)
            high = tl.where(is_wrong, end, begin)
            row_max = tl.where(is_wrong, float('-inf'), row_max)
            row_sums, sums = tl.where(is_wrong, 0, row_sums), tl.where(is_wrong, 0, sums)
        for tile in tl.range(low, high, num_stages=1 if loop == EXACT else STAGES):
            first = tl.load(column_of + tile) * COLUMNS
            key_j = vectors_of_block(key, first, num_columns, key_head, HEADS // SHARING, CHANNELS,
                                     COLUMNS, WIDTH, loop == FULL)
            value_j = vectors_of_block(value, first, num_columns, key_head, HEADS // SHARING,
                                       VALUE_CHANNELS, COLUMNS, VALUE_WIDTH, loop == FULL)
            is_edge, number = pairs_of_tile(bits, edge_of, tile, loop == FULL, ROWS, COLUMNS,
                                            NEEDS_EDGES)
            edge = base + number
            logit = logits(tl.dot(query_i, tl.trans(key_j)), bias, gate, bias_edge_stride,
                           bias_head_stride, gate_edge_stride, gate_head_stride, scale, edge,
                           is_edge, head, SOFTCAP, tl.float32)
            new_max = tl.maximum(row_max, tl.max(logit, axis=1))
            shift = tl.where(new_max == float('-inf'), 0, new_max)  # avoids -inf - -inf
            rescale = _exp(row_max - shift)[:, None]
            weight = _exp(logit - shift[:, None])
            # Summed as they are multiplied, so that rounded weights sum to 1. Of two tensor cores'
            # products, this one is cheaper than the sum of 64 columns.
            row_sums = _add_product(row_sums * rescale, weight, ones)
            if seed is not None:
                weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
            sums = sums * rescale
            if loop == EXACT:
                sums = add_edge_by_edge(sums, weight, is_edge, value, first, num_columns, key_head,
                                        HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, COLUMNS)
            else:
                sums = _add_product(sums, weight, value_j)
            row_max = new_max
    row_sum = tl.max(row_sums, axis=1)  # all columns are equal
    inv_sum = tl.where(row_sum == 0, 0, 1 / row_sum)
    is_whole = is_row & (is_cut == 0)
    put(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_whole, sums * inv_sum[:, None])
    put_max_inv_sum(max_inv_sum, row * HEADS + head, is_whole, row_max, inv_sum)
    put_part(parts, head * num_parts + slot, is_row & is_cut, sums, row_max, row_sum,
             VALUE_CHANNELS, VALUE_WIDTH)


@triton.jit
def _exp(x):
    return tl.exp2(x * 1.4426950408889634)  # flushes what is not normal, unlike exp


@triton.jit
def _add_product(sums, weight, x):
    # float16 is multiplied in TF32, because gradients may be outside of its range.
    if x.dtype == tl.bfloat16:
        sums = tl.dot(weight.to(tl.bfloat16), x, sums)
    else:
        sums = tl.dot(weight, x.to(tl.float32), sums, input_precision='tf32')
    return sums


@kernel
def grads_of_tiled_queries(
        indptr, num_tiles, num_full, first_tile, column_of, bits, edge_of, more, place_of_more,
        num_rows, num_places, max_more, query, key, value, grad_out, bias, gate, seed,
        bias_edge_stride, bias_head_stride, gate_edge_stride, gate_head_stride, scale: fp64,
        threshold: u64, keep_scale: fp64, SOFTCAP: tl.constexpr, out, max_inv_sum, softmax,
        grad_query, grad_bias, grad_gate, parts, num_parts, num_columns, num_edges,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, NEEDS_EDGES: tl.constexpr,
        STAGES: tl.constexpr):
    """Kernel: compute the gradients of a block of queries in one head, and of bias and gate."""
    # Arguments as in attend_tiles; softmax as in grads_of_queries of attention/triton.py.
    first_row, is_row, base, begin, full, end, slot, is_cut = tiles_of_task(
        indptr, num_tiles, num_full, first_tile, more, place_of_more, num_rows, num_places,
        max_more, ROWS)
    head = tl.program_id(1)
    key_head = head // SHARING
    row = first_row + tl.arange(0, ROWS)
    query_i = vectors_of_block(query, first_row, num_rows, head, HEADS, CHANNELS, ROWS, WIDTH,
                               False)
    grad_i = vectors_of_block(grad_out, first_row, num_rows, head, HEADS, VALUE_CHANNELS, ROWS,
                              VALUE_WIDTH, False)
    out_i = gather(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row, tl.float32)
    at = row * HEADS + head
    row_max = tl.load(max_inv_sum + 2 * at, mask=is_row, other=0)
    inv_sum = tl.load(max_inv_sum + 2 * at + 1, mask=is_row, other=0)
    delta = tl.sum(grad_i.to(tl.float32) * out_i, axis=1)
    tl.store(softmax + 4 * at, row_max, mask=is_row)
    tl.store(softmax + 4 * at + 1, inv_sum, mask=is_row)
    tl.store(softmax + 4 * at + 2, delta, mask=is_row)
    factor = inv_sum * tl.full((), scale, tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for loop in tl.static_range(LOOPS):
        low, high = (full, end) if loop == FULL else (begin, full)
        if loop == EXACT:
            is_wrong = not_finite(sums)
            high = tl.where(is_wrong, end, begin)
            sums = tl.where(is_wrong, 0, sums)
        for tile in tl.range(low, high, num_stages=1 if loop == EXACT else STAGES):
            first = tl.load(column_of + tile) * COLUMNS
            key_j = vectors_of_block(key, first, num_columns, key_head, HEADS // SHARING, CHANNELS,
                                     COLUMNS, WIDTH, loop == FULL)
            value_j = vectors_of_block(value, first, num_columns, key_head, HEADS // SHARING,
                                       VALUE_CHANNELS, COLUMNS, VALUE_WIDTH, loop == FULL)
            is_edge, number = pairs_of_tile(bits, edge_of, tile, loop == FULL, ROWS, COLUMNS,
                                            NEEDS_EDGES)
            edge = base + number
            dot = tl.dot(query_i, tl.trans(key_j))
            logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                           gate_head_stride, scale, edge, is_edge, head, SOFTCAP, tl.float32)
            weight = _exp(logit - row_max[:, None])  # times inv_sum, which all pairs of a row share
            grad_weight = tl.dot(grad_i, tl.trans(value_j))
            if seed is not None:
                grad_weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
            grad_logit = weight * (grad_weight - delta[:, None])
            if loop != FULL:
                grad_logit = tl.where(is_edge, grad_logit, 0)
            if grad_bias is not None:
                tl.store(grad_bias + head.to(tl.int64) * num_edges + edge,
                         grad_logit * inv_sum[:, None], mask=is_edge)
            grad_dot = before_softcap(grad_logit, dot, gate, gate_edge_stride, gate_head_stride,
                                      scale, edge, is_edge, head, SOFTCAP, tl.float32)
            if grad_gate is not None:
                tl.store(grad_gate + head.to(tl.int64) * num_edges + edge,
                         grad_dot * dot * factor[:, None], mask=is_edge)
            if gate is not None:
                grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_edge, head,
                                  tl.float32)
            if loop == EXACT:
                sums = add_edge_by_edge(sums, grad_dot, is_edge, key, first, num_columns, key_head,
                                        HEADS // SHARING, CHANNELS, WIDTH, COLUMNS)
            else:
                sums = _add_product(sums, grad_dot, key_j)
    sums *= factor[:, None]
    put(grad_query, row, head, HEADS, CHANNELS, WIDTH, is_row & (is_cut == 0), sums)
    put(parts, head * num_parts + slot, 0, 1, CHANNELS, WIDTH, is_row & is_cut, sums)


@kernel
def grads_of_tiled_keys(
        indptr, num_tiles, num_full, first_tile, column_of, bits, edge_of, more, place_of_more,
        num_rows, num_places, max_more, perm, query, key, value, grad_out, bias, gate, seed,
        bias_edge_stride, bias_head_stride, gate_edge_stride, gate_head_stride, scale: fp64,
        threshold: u64, keep_scale: fp64, SOFTCAP: tl.constexpr, softmax, grad_key, grad_value,
        parts, value_parts, num_parts, num_columns,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, NEEDS_EDGES: tl.constexpr,
        STAGES: tl.constexpr):
    """Kernel: compute the gradients of a block of keys and values in one head."""
    # Arguments as in attend_tiles; perm: the place of each edge in the order by query; softmax: of
    # grads_of_tiled_queries.
    first_row, is_row, base, begin, full, end, slot, is_cut = tiles_of_task(
        indptr, num_tiles, num_full, first_tile, more, place_of_more, num_rows, num_places,
        max_more, ROWS)
    key_head = tl.program_id(1)
    row = first_row + tl.arange(0, ROWS)
    key_j = vectors_of_block(key, first_row, num_rows, key_head, HEADS // SHARING, CHANNELS, ROWS,
                             WIDTH, False)
    value_j = vectors_of_block(value, first_row, num_rows, key_head, HEADS // SHARING,
                               VALUE_CHANNELS, ROWS, VALUE_WIDTH, False)
    key_sums = tl.zeros([ROWS, WIDTH], tl.float32)
    value_sums = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for loop in tl.static_range(LOOPS):
        low, high = (full, end) if loop == FULL else (begin, full)
        if loop == EXACT:
            is_wrong = not_finite(key_sums) | not_finite(value_sums)
            high = tl.where(is_wrong, end, begin)
            key_sums = tl.where(is_wrong, 0, key_sums)
            value_sums = tl.where(is_wrong, 0, value_sums)
        for head in range(key_head * SHARING, (key_head + 1) * SHARING):
            for tile in tl.range(low, high, num_stages=1 if loop == EXACT else STAGES):
                first = tl.load(column_of + tile) * COLUMNS
                query_i = vectors_of_block(query, first, num_columns, head, HEADS, CHANNELS,
                                           COLUMNS, WIDTH, loop == FULL)
                grad_i = vectors_of_block(grad_out, first, num_columns, head, HEADS,
                                          VALUE_CHANNELS, COLUMNS, VALUE_WIDTH, loop == FULL)
                is_edge, number = pairs_of_tile(bits, edge_of, tile, loop == FULL, ROWS, COLUMNS,
                                                NEEDS_EDGES)
                edge = base + number
                if NEEDS_EDGES:
                    edge = tl.load(perm + edge, mask=is_edge, other=0).to(tl.int64)
                i = first + tl.arange(0, COLUMNS)
                at = (i.to(tl.int64) * HEADS + head) * 4
                row_max = tl.load(softmax + at, mask=i < num_columns, other=0)
                inv_sum = tl.load(softmax + at + 1, mask=i < num_columns, other=0)
                delta = tl.load(softmax + at + 2, mask=i < num_columns, other=0)
                dot = tl.dot(key_j, tl.trans(query_i))
                logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride,
                               gate_edge_stride, gate_head_stride, scale, edge, is_edge, head,
                               SOFTCAP, tl.float32)
                weight = _exp(logit - row_max[None, :]) * inv_sum[None, :]
                grad_weight = tl.dot(value_j, tl.trans(grad_i))
                used = weight
                if seed is not None:
                    keep = kept(seed, threshold, keep_scale, edge, head, HEADS, tl.float32)
                    grad_weight *= keep
                    used = weight * keep
                grad_dot = weight * (grad_weight - delta[None, :])
                if loop != FULL:
                    used = tl.where(is_edge, used, 0)
                    grad_dot = tl.where(is_edge, grad_dot, 0)
                grad_dot = before_softcap(grad_dot, dot, gate, gate_edge_stride, gate_head_stride,
                                          scale, edge, is_edge, head, SOFTCAP, tl.float32)
                if gate is not None:
                    grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, is_edge,
                                      head, tl.float32)
                if loop == EXACT:
                    key_sums = add_edge_by_edge(key_sums, grad_dot, is_edge, query, first,
                                                num_columns, head, HEADS, CHANNELS, WIDTH, COLUMNS)
                    value_sums = add_edge_by_edge(value_sums, used, is_edge, grad_out, first,
                                                  num_columns, head, HEADS, VALUE_CHANNELS,
                                                  VALUE_WIDTH, COLUMNS)
                else:
                    key_sums = _add_product(key_sums, grad_dot, query_i)
                    value_sums = _add_product(value_sums, used, grad_i)
    key_sums *= tl.full((), scale, tl.float32)
    is_whole = is_row & (is_cut == 0)
    put(grad_key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_whole, key_sums)
    put(grad_value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_whole,
        value_sums)
    slot = key_head * num_parts + slot
    put(parts, slot, 0, 1, CHANNELS, WIDTH, is_row & is_cut, key_sums)
    put(value_parts, slot, 0, 1, VALUE_CHANNELS, VALUE_WIDTH, is_row & is_cut, value_sums)
