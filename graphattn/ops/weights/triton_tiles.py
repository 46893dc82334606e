"""Weighted sums along locally dense edges in Triton: tensor cores multiply all pairs of a tile."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton import tiles as plans
from graphattn.ops.triton.launch import kernel, launch, width_of
from graphattn.ops.triton.rows import ROWS_OF_A_TILE, Rows, put
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

# With more channels, the sums of a program would need more registers than a GPU has.
_MAX_CHANNELS = 128


def planned(rows: Rows, x: Tensor) -> Tiles | None:
    """Return the tiles that attention has planned for these rows, None if there are none or the
    vectors ``x`` are not supported."""
    _, heads, channels = x.shape
    if x.dtype == torch.float64 or channels > _MAX_CHANNELS:
        return None
    return plans.planned(rows.indptr, rows.column, len(x), heads)


def sum_tiles(weight: Tensor, x: Tensor, tiles: Tiles, rows: Rows, out: Tensor) -> None:
    """Write to ``out`` the weighted sums of ``x`` of the rows in ``tiles``."""
    # weight: [heads, num_edges], of which 0 adds nothing even if x is infinite or NaN
    (num_columns, heads, channels), tasks = x.shape, tiles.tasks
    parts = tasks.parts(heads, channels, torch.float)
    launch(sums_of_tiles, (tasks.number, heads), *tiles.pointers(rows), weight, x.contiguous(), out,
           parts, parts.size(1), num_columns, rows.num_edges, HEADS=heads, CHANNELS=channels,
           ROWS=ROWS_OF_A_TILE, COLUMNS=COLUMNS, WIDTH=width_of(channels),
           num_warps=max(4, width_of(channels) // 16))
    tasks.add(parts, out)


@kernel
def sums_of_tiles(
        indptr, num_tiles, num_full, first_tile, column_of, bits, edge_of, more, place_of_more,
        num_rows, num_places, max_more, weight, x, out, parts, num_parts, num_columns, num_edges,
        HEADS: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        WIDTH: tl.constexpr):
    """Kernel: write the weighted sums of ``x`` over the edges of a block of rows in one head."""
    # up to max_more: Tiles.pointers; parts of a block go to ``parts``
    first_row, is_row, base, begin, full, end, slot, is_cut = tiles_of_task(
        indptr, num_tiles, num_full, first_tile, more, place_of_more, num_rows, num_places,
        max_more, ROWS)
    head = tl.program_id(1)
    of_head = weight + head.to(tl.int64) * num_edges + base
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for loop in tl.static_range(LOOPS):
        low, high = (full, end) if loop == FULL else (begin, full)
        if loop == EXACT:
            is_wrong = not_finite(sums)
            high = tl.where(is_wrong, end, begin)
            sums = tl.where(is_wrong, 0, sums)
        # A pipeline would load the weights of single edges through shared memory.
        for tile in tl.range(low, high, num_stages=1):
            first = tl.load(column_of + tile) * COLUMNS
            is_edge, number = pairs_of_tile(bits, edge_of, tile, loop == FULL, ROWS, COLUMNS, True)
            weight_j = tl.load(of_head + number, mask=is_edge, other=0)
            if loop == EXACT:
                sums = add_edge_by_edge(sums, weight_j, is_edge & (weight_j != 0), x, first,
                                        num_columns, head, HEADS, CHANNELS, WIDTH, COLUMNS)
            else:
                x_j = vectors_of_block(x, first, num_columns, head, HEADS, CHANNELS, COLUMNS,
                                       WIDTH, loop == FULL)
                # Gradients of probabilities need the precision of float32.
                sums = tl.dot(weight_j, x_j.to(tl.float32), sums, input_precision='tf32x3')
    put(out, first_row + tl.arange(0, ROWS), head, HEADS, CHANNELS, WIDTH,
        is_row & (is_cut == 0), sums)
    put(parts, head * num_parts + slot, 0, 1, CHANNELS, WIDTH, is_row & is_cut, sums)
