"""Tiles of pairs of rows and columns: where the next tile with edges is, and which of its pairs are
edges."""

from __future__ import annotations

import triton
import triton.language as tl

from graphattn.ops.triton.rows import ROWS_OF_A_TILE, gather

MAX_COLUMNS = 2**31 // ROWS_OF_A_TILE - 1  # because edges of 64 rows are counted in 32 bits


@triton.jit
def add_edge_by_edge(sums, weight_j, is_added, x, j, num_columns, head, HEADS: tl.constexpr,
                     CHANNELS: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Return ``sums`` ``[rows, WIDTH]`` plus the sum over columns of ``weight_j`` ``[rows,
    columns]`` times the vectors ``x[j, head]``. Only pairs for which ``is_added`` is true count.

    A product of matrices would include all pairs, and 0 times a non-finite value is NaN. Vectors
    are read again one by one, because all together would need too many registers.
    """
    for first in range(tl.min(j, axis=0), tl.max(j, axis=0) + 1):
        node = first + tl.zeros([1], tl.int32)
        x_j = gather(x, node, head, HEADS, CHANNELS, WIDTH, node < num_columns, DTYPE)
        is_it = (j == first)[None, :]
        weight = tl.sum(tl.where(is_it, weight_j, 0), axis=1)[:, None]
        added = tl.max((is_it & is_added).to(tl.int32), axis=1)[:, None] == 1
        sums += tl.where(added, weight * x_j, 0)
    return sums


@triton.jit
def edges_of_rows(indptr, first_row, row, is_row):
    """Return three values for consecutive rows: the first edge of row ``first_row``; and counted
    from this edge, where the edges of each row begin, and where they end. The last two have 32
    bits, because registers are scarce."""
    base = tl.load(indptr + first_row)
    begin = tl.load(indptr + row, mask=is_row, other=0) - base
    end = tl.load(indptr + row + 1, mask=is_row, other=0) - base
    return base, tl.where(is_row, begin, 0).to(tl.int32), tl.where(is_row, end, 0).to(tl.int32)


@triton.jit
def next_tile(column, edge, end, num_columns, COLUMNS: tl.constexpr):
    """Return the next tile with edges. A tile has ``COLUMNS`` consecutive columns.

    Args:
        column: The column of each edge.
        edge, end: The next edge of each row, and the end of the edges of each row.
        num_columns: Number of columns of the graph.
        COLUMNS: Number of columns of a tile, at most 32.

    Returns:
        Four values: the columns of the tile; for each pair of a row and a column, the number of
        edges of the row from ``edge`` on that lie before this column; whether each pair is an edge;
        and the number of edges of each row in the tile.
    """
    number = tl.arange(0, COLUMNS)
    inside = number[None, :] < (end - edge)[:, None]
    found = tl.load(column + (edge[:, None] + number[None, :]), mask=inside, other=0).to(tl.int32)
    nearest = tl.min(tl.where(inside, found, num_columns))
    first = nearest // COLUMNS * COLUMNS
    place = found - first
    # Columns ascend, so the columns of a row are different bits of one word.
    bit = tl.full([1, 1], 1, tl.uint32) << (place & (COLUMNS - 1)).to(tl.uint32)
    bits = tl.sum(tl.where(inside & (place < COLUMNS), bit, 0), axis=1).to(tl.uint32)
    of_column = tl.full([1, COLUMNS], 1, tl.uint32) << number[None, :].to(tl.uint32)
    step, is_edge = _count_bits(bits[:, None] & (of_column - 1)), (bits[:, None] & of_column) != 0
    return first + number, step, is_edge, _count_bits(bits)


@triton.jit
def _count_bits(bits):
    """Return the number of set bits in each 32-bit word."""
    bits -= (bits >> 1) & 0x55555555
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24).to(tl.int32)
