"""Attention of a tile of rows whose keys are ranges.

Only the products with keys and values are computed by tile. Terms of logits, the softmax and
dropout are computed by row, as for any other graph.
"""

from __future__ import annotations

import numpy as np

from graphattn.ops.cpu.jit import jit
from graphattn.ops.cpu.rows import clear_row, multiply_row, prefetch_row
from graphattn.ops.cpu.simd import exp
from graphattn.ops.cpu.softmax import drop_out, exponentials, modify, put_max_inv_sum
from graphattn.ops.cpu.tiles import (
    ROWS,
    add_total,
    borrow,
    gather_factors,
    put_ranges,
    stride_of_rows,
    tile_dots,
    tile_weighted,
)


@jit
def attend_tile(begin, end, begin_item, low, up, first_key, last_key, head, query, panels, rows,
                to_value, terms, position, row_max, row_sum, factors, weight, total, out,
                max_inv_sum, edges):
    """Add the keys from ``low`` to ``up`` to the outputs of the queries from ``begin`` to
    ``end``."""
    heads, num_rows = terms.num_heads, end - begin
    starts, ends = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    left, right = put_ranges(starts, ends, position, begin, end, begin_item, low, up, edges)
    stride, weight = stride_of_rows(left, right), borrow(weight)
    first_row = begin * heads + head
    gather_factors(factors, query, first_row, heads, num_rows)
    tile_dots(weight, stride, factors, panels, query.shape[1], left, right)
    for r in range(num_rows):
        row, at, n = first_row + r * heads, begin - begin_item + r, ends[r] - starts[r]
        prefetch_row(out, row + ROWS * heads)
        prefetch_row(query, row + ROWS * heads)
        if low == first_key:
            clear_row(out, row)
        first = position[at]
        position[at] += n
        if n > 0:
            own = weight[r * stride + starts[r] - left:]
            modify(own, terms, first, n, head)
            new_max, added = exponentials(own, n, row_max[at])
            if low > first_key and new_max > row_max[at]:
                rescale = exp(row_max[at] - new_max)
                row_sum[at] *= rescale
                multiply_row(out, row, rescale)
            row_max[at] = new_max
            row_sum[at] += added
            drop_out(own, terms, first, n, head)
    total_stride = len(total) // ROWS
    tile_weighted(total, total_stride, weight, stride, left, starts, ends, num_rows, rows,
                  to_value, out.shape[1])
    for r in range(num_rows):
        row, at = first_row + r * heads, begin - begin_item + r
        add_total(out, row, total, r * total_stride)
        if up == last_key:
            put_max_inv_sum(max_inv_sum, row, row_max[at], row_sum[at])
            if row_sum[at] != 0:
                multiply_row(out, row, max_inv_sum[row, 1])
