"""Attention along edges from ranges of consecutive keys, in loops for CPUs over tiles of
consecutive queries.

Only products are computed in tiles; logits, softmax and dropout row by row. Each range of a row
belongs to another tile.
"""

from __future__ import annotations

import numpy as np

from graphattn.ops.cpu.chunks import (
    aligned,
    clear,
    gather,
    keys_per_chunk,
    max_chunk,
    odd_lines,
    put,
)
from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.rows import (
    clear_row,
    dot_of_rows,
    multiply_row,
)
from graphattn.ops.cpu.schedule import Edges, max_rows, next_item
from graphattn.ops.cpu.simd import LANES, exp
from graphattn.ops.cpu.softmax import (
    differentiate,
    drop_out,
    exponentials,
    modify,
    put_max_inv_sum,
)
from graphattn.ops.cpu.tiles import (
    ROWS,
    add_total,
    borrow,
    gather_panels,
    gather_tile,
    in_tiles,
    new_panels,
    new_tile,
    next_ranges,
    prefetch_tile,
    stride_of_rows,
    tile_dots,
    tile_scatter,
    tile_weighted,
    whole_panels,
)

# Number of pairs that tiles compute in the time of one edge in loops over rows, forward and
# backward. Measured along windows: with tiles, the forward pass took longer up to 65 keys at 64
# channels and up to 129 keys at 32 channels, and the backward pass up to 33 and up to 49 keys.
MOST, MOST_BACKWARD = 2.15, 3.7
_FIXED = 8192  # multiplications that take as long as the overhead of a row of a tile


def split_by_tiles(items: np.ndarray, edges: Edges, shape: tuple[int, int], most: float
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Split work items into those for loops over rows, and those for loops over tiles."""
    # most: pairs of tiles for each edge of a segment
    are_tiled = in_tiles(edges, most, _FIXED // max(shape[1], 1))
    if not are_tiled.any():
        return items, items[:0]
    are_tiled = are_tiled[items[:, 3]]
    return items[~are_tiled], items[are_tiled]


# Loops ###############################################################################


@in_threads
def attend_in_tiles(items, progress, query, key, value, queries_per_key, terms, out, max_inv_sum,
                    edges):
    """Loop: write the output, the maximum logit m and 1 over the sum of ``exp(logit - m)``."""
    # query to value, out, max_inv_sum: [nodes * heads, channels]
    indptr, key_ptr, heads = edges.indptr, edges.column_ptr, terms.num_heads
    num_rows, num_kv_heads = max_rows(items), heads // queries_per_key
    position = np.empty(num_rows, np.int64)
    row_max, row_sum = np.empty(num_rows, query.dtype), np.empty(num_rows, query.dtype)
    channels = key.shape[1] + value.shape[1]
    max_keys = max_chunk(items, channels, edges)
    own, panels = aligned(max_keys, value.shape[1], key), new_panels(max_keys, key)
    query_tile, total = new_tile(key.shape[1], key), new_tile(value.shape[1], key)
    weight = new_tile(max_keys, key)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end, segment = items[item, 0], items[item, 1], items[item, 2], items[item, 3]
        first_key, last_key = key_ptr[segment], key_ptr[segment + 1]
        chunk, key_head = keys_per_chunk(channels, edges, segment), head // queries_per_key
        for i in range(begin, end):
            position[i - begin], row_max[i - begin], row_sum[i - begin] = indptr[i], -np.inf, 0
            clear_row(out, i * heads + head)
        for low in range(first_key, last_key, chunk):
            up = min(low + chunk, last_key)
            rows = own[:up - low]
            gather(rows, 0, value, low, key_head, num_kv_heads)
            gather_panels(panels, key, low, up - low, key_head, num_kv_heads)
            _attend(begin, end, low, up, head, query, panels, rows, terms, position, row_max,
                    row_sum, query_tile, weight, total, out, edges)
        for i in range(begin, end):
            row = i * heads + head
            put_max_inv_sum(max_inv_sum, row, row_max[i - begin], row_sum[i - begin])
            multiply_row(out, row, max_inv_sum[row, 1])
        item = next_item(progress, 0)


@jit
def _attend(begin, end, low, up, head, query, panels, rows, terms, position, row_max, row_sum,
            query_tile, weight, total, out, edges):
    # Adds what the keys low:up contribute. panels are of gather_panels, rows are the values [up -
    # low, channels]. position, row_max and row_sum, of each query so far, are updated.
    heads, weight = terms.num_heads, borrow(weight)
    starts, ends = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    for first in range(begin, end, ROWS):
        n, row = min(ROWS, end - first), first * heads + head
        prefetch_tile(query, row, heads)
        prefetch_tile(out, row, heads)
        left, right = next_ranges(starts, ends, position, first, n, begin, low, up, edges)
        if left < right:
            gather_tile(query_tile, query, row, heads, n)
        while left < right:
            stride = stride_of_rows(left, right)
            tile_dots(weight, stride, query_tile, panels, query.shape[1], left, right)
            for r in range(n):
                _weigh(weight[r * stride + starts[r] - left:], ends[r] - starts[r], position,
                       row_max, row_sum, first - begin + r, terms, head, out, row + r * heads)
            tile_weighted(total, weight, stride, left, starts, ends, n, rows, out.shape[1])
            for r in range(n):
                if starts[r] < ends[r]:
                    add_total(out, row + r * heads, total, r)
            left, right = next_ranges(starts, ends, position, first, n, begin, low, up, edges)


@jit_inline
def _weigh(weight, n, position, row_max, row_sum, at, terms, head, out, row):
    # The dot products of a query with its next n keys become exp(logit - m), where m is the maximum
    # up to these keys, after dropout; if m rises, out[row] is rescaled.
    if n > 0:
        first = position[at]
        position[at] += n
        modify(weight, terms, first, n, head)
        new_max, added = exponentials(weight, n, row_max[at])
        if row_sum[at] != 0 and new_max > row_max[at]:
            rescale = exp(row_max[at] - new_max)
            row_sum[at] *= rescale
            multiply_row(out, row, rescale)
        row_max[at] = new_max
        row_sum[at] += added
        drop_out(weight, terms, first, n, head)


@in_threads
def attend_in_tiles_backward(
        items, progress, query, key, value, grad_out, out, max_inv_sum, queries_per_key, terms,
        grad_query, grad_bias, grad_gate, grad_key, grad_value, shared_grad_key, shared_grad_value,
        edges):
    """Loop: write the gradients of queries, keys, values, bias and gate."""
    # grad_bias, grad_gate: [num_edges, heads], or empty; the last four before edges: targets of
    # KeyGrads
    indptr, key_ptr, heads = edges.indptr, edges.column_ptr, terms.num_heads
    num_rows, num_kv_heads = max_rows(items), heads // queries_per_key
    position, deltas = np.empty(num_rows, np.int64), np.empty(num_rows, query.dtype)
    to_grad = whole_panels(key.shape[1])
    stride = odd_lines(2 * to_grad + whole_panels(value.shape[1]), key)
    max_keys = max_chunk(items, stride, edges)
    own = aligned(max_keys, stride, key)
    panels, value_panels = new_panels(max_keys, key), new_panels(max_keys, value)
    query_tile, grad_tile = new_tile(key.shape[1], key), new_tile(value.shape[1], key)
    total, kept = new_tile(key.shape[1], key), np.ones(max_keys + LANES, query.dtype)
    dot, grad, weight = new_tile(max_keys, key), new_tile(max_keys, key), new_tile(max_keys, key)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        segment, shared_row = items[item, 3], items[item, 4]
        first_key, last_key = key_ptr[segment], key_ptr[segment + 1]
        chunk, key_head = keys_per_chunk(stride, edges, segment), head // queries_per_key
        for i in range(begin, end):
            row = i * heads + head
            position[i - begin], deltas[i - begin] = indptr[i], dot_of_rows(grad_out, out, row)
            clear_row(grad_query, row)
        for low in range(first_key, last_key, chunk):
            up = min(low + chunk, last_key)
            rows = own[:up - low]
            gather(rows, 0, key, low, key_head, num_kv_heads)
            clear(rows, key.shape[1])  # and the rest of the last panel of keys
            gather_panels(panels, key, low, up - low, key_head, num_kv_heads)
            gather_panels(value_panels, value, low, up - low, key_head, num_kv_heads)
            _attend_backward(begin, end, low, up, head, query, grad_out, max_inv_sum, panels,
                             value_panels, rows, to_grad, terms, position, deltas, query_tile,
                             grad_tile, dot, grad, weight, kept, total, grad_query, grad_bias,
                             grad_gate, edges)
            if shared_row < 0:
                put(grad_key, rows, to_grad, low, key_head, num_kv_heads)
                put(grad_value, rows, 2 * to_grad, low, key_head, num_kv_heads)
            else:
                put(shared_grad_key, rows, to_grad, shared_row + low - first_key, 0, 1)
                put(shared_grad_value, rows, 2 * to_grad, shared_row + low - first_key, 0, 1)
        item = next_item(progress, 0)


@jit
def _attend_backward(
        begin, end, low, up, head, query, grad_out, max_inv_sum, panels, value_panels, rows,
        to_grad, terms, position, deltas, query_tile, grad_tile, dot, grad, weight, kept, total,
        grad_query, grad_bias, grad_gate, edges):
    # rows: keys [up - low, ...], with gradients of keys from column to_grad on, of values from 2 *
    # to_grad on. position is updated. deltas: the sum of weight times its gradient of each query.
    # kept: filled with ones.
    heads, dot, grad, weight = terms.num_heads, borrow(dot), borrow(grad), borrow(weight)
    starts, ends = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    for first in range(begin, end, ROWS):
        n, row = min(ROWS, end - first), first * heads + head
        for x in (query, grad_out, grad_query):
            prefetch_tile(x, row, heads)
        left, right = next_ranges(starts, ends, position, first, n, begin, low, up, edges)
        if left < right:
            gather_tile(query_tile, query, row, heads, n)
            gather_tile(grad_tile, grad_out, row, heads, n)
        while left < right:
            stride = stride_of_rows(left, right)
            tile_dots(dot, stride, query_tile, panels, query.shape[1], left, right)
            tile_dots(grad, stride, grad_tile, value_panels, grad_out.shape[1], left, right)
            for r in range(n):
                own = r * stride + starts[r] - left
                at, of_row = first - begin + r, max_inv_sum[row + r * heads]
                differentiate(dot[own:], grad[own:], weight[own:], kept, position[at],
                              ends[r] - starts[r], of_row[0], of_row[1], deltas[at], terms, head,
                              grad_bias, grad_gate)
                position[at] += ends[r] - starts[r]
            tile_weighted(total, grad, stride, left, starts, ends, n, rows, query.shape[1])
            for r in range(n):
                if starts[r] < ends[r]:
                    add_total(grad_query, row + r * heads, total, r)
            tile_scatter(rows, to_grad, grad, stride, left, starts, ends, query_tile,
                         query.shape[1])
            tile_scatter(rows, 2 * to_grad, weight, stride, left, starts, ends, grad_tile,
                         grad_out.shape[1])
            left, right = next_ranges(starts, ends, position, first, n, begin, low, up, edges)
