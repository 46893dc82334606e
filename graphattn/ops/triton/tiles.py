"""Dot products and sums along the edges of dense graphs, computed by multiplying all pairs of a
tile.

Multiplying a pair takes a small fraction of the time that gathering the channels of a node for an
edge takes. Tiles without edges are skipped, and no tensor of the size of all pairs is written.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.launch import TYPES, kernel, launch, width_of
from graphattn.ops.triton.rows import gather, put

# For each number of channels, the density above which tiles are faster in forward and backward
# pass, if all edges have a gradient. The densities are computed for an H200, not measured: they
# compare the memory traffic of an edge with the instructions of a pair. python -m
# experiments.benchmarks.roofline computes them again, and python -m experiments.benchmarks.gpu
# measures them on a GPU.
FASTER_ABOVE = {32: 0.08, 64: 0.07, 128: 0.05, 256: 0.04}
_MAX_ROWS, _BYTES_OF_SUMS = 64, 2**15  # of a tile, whose sums are in registers
MAX_COLUMNS = 2**31 // _MAX_ROWS - 1  # the edges of a tile's rows are counted in 32 bits


def is_faster(query: Tensor, key: Tensor, num_edges: int, num_segments: int) -> bool:
    """Return whether kernels over tiles of pairs take less time than kernels over rows of edges.

    All segments are assumed to have the same size, because reading sizes would synchronise the
    device; wrong sizes only cost time. The answer is False except for float32, because the
    densities are for float32, and because Triton fails to compile some products of float64.
    """
    share = np.interp(query.size(2), [*FASTER_ABOVE], [*FASTER_ABOVE.values()])
    return (query.dtype == torch.float32 and max(len(query), len(key)) <= MAX_COLUMNS
            and num_edges * num_segments > share * len(query) * len(key))


def dot_tiles(query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor, dot: Tensor) -> None:
    """Write the dot products into ``dot``, ``[heads, num_edges]``."""
    _launch(dot_of_tiles, query.contiguous(), key.contiguous(), indptr, edge_key, dot,
            ROWS=_MAX_ROWS, COLUMNS=32, DEPTH=32, num_warps=4)


def sum_tiles(weight: Tensor, x: Tensor, indptr: Tensor, column: Tensor) -> Tensor:
    """Return the weighted sums of the columns of each row, ``[rows, heads, channels]``. Weights are
    ``[heads, num_edges]`` in the order of the rows. Weights of 0 add nothing, even if values are
    infinite."""
    _, heads, channels = x.shape
    out, width = x.new_empty(indptr.numel() - 1, heads, channels), width_of(channels)
    rows = min(_MAX_ROWS, _BYTES_OF_SUMS // (width * x.element_size()))
    _launch(sum_of_tiles, out, x.contiguous(), indptr, column, weight.contiguous(), ROWS=rows,
            COLUMNS=32, WIDTH=width, num_warps=4 if width < 64 else 8)  # limited by registers
    return out


def _launch(function: triton.runtime.KernelInterface, at_row: Tensor, at_column: Tensor,
            indptr: Tensor, column: Tensor, on_edges: Tensor, *, ROWS: int, **constants) -> None:
    num_rows, heads, channels = at_row.shape
    launch(function, (triton.cdiv(num_rows, ROWS), heads), at_row, at_column, indptr, column,
           on_edges, num_rows, len(at_column), column.numel(), HEADS=heads, CHANNELS=channels,
           DTYPE=TYPES[at_row.dtype], ROWS=ROWS, PRECISION=_precision(), **constants)


def _precision() -> str:
    """Return the name of the precision of float32 products: TF32 if torch's flag allows TF32, else
    three products in TF32, which are as exact as float32."""
    return 'tf32' if torch.backends.cuda.matmul.fp32_precision == 'tf32' else 'tf32x3'


# Kernels #############################################################################


@kernel
def dot_of_tiles(
        query, key, indptr, edge_key, dot, num_rows, num_columns, num_edges, HEADS: tl.constexpr,
        CHANNELS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        PRECISION: tl.constexpr, DEPTH: tl.constexpr):
    """Kernel: compute the dot products of some queries with the keys of their edges."""
    row, head, base, edge, end = _edges_of_program(indptr, num_rows, ROWS)
    of_edges = dot + head.to(tl.int64) * num_edges + base
    while tl.max(end - edge, axis=0) > 0:
        j, step, is_edge, count = next_tile(edge_key + base, edge, end, num_columns, COLUMNS)
        product = tl.zeros([ROWS, COLUMNS], DTYPE)
        for first in range(0, CHANNELS, DEPTH):
            query_i = _some_channels(query, row, row < num_rows, head, first, HEADS, CHANNELS,
                                     DEPTH, DTYPE)
            key_j = _some_channels(key, j, j < num_columns, head, first, HEADS, CHANNELS, DEPTH,
                                   DTYPE)
            product = tl.dot(query_i, tl.trans(key_j), product, input_precision=PRECISION,
                             out_dtype=DTYPE)
        tl.store(of_edges + (edge[:, None] + step), product, mask=is_edge)
        edge += count


@kernel
def sum_of_tiles(
        out, x, indptr, column, weight, num_rows, num_columns, num_edges, HEADS: tl.constexpr,
        CHANNELS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        PRECISION: tl.constexpr, WIDTH: tl.constexpr):
    """Kernel: compute the weighted sums of some rows."""
    row, head, base, edge, end = _edges_of_program(indptr, num_rows, ROWS)
    of_edges = weight + head.to(tl.int64) * num_edges + base
    sums = tl.zeros([ROWS, WIDTH], DTYPE)
    while tl.max(end - edge, axis=0) > 0:
        j, step, is_edge, count = next_tile(column + base, edge, end, num_columns, COLUMNS)
        weight_j = tl.load(of_edges + (edge[:, None] + step), mask=is_edge, other=0).to(DTYPE)
        x_j = gather(x, j, head, HEADS, CHANNELS, WIDTH, j < num_columns, DTYPE)
        if tl.max((x_j - x_j != 0).to(tl.int32)) == 0:
            sums = tl.dot(weight_j, x_j, sums, input_precision=PRECISION, out_dtype=DTYPE)
        else:
            sums = add_edge_by_edge(sums, weight_j, weight_j != 0, x, j, num_columns, head, HEADS,
                                    CHANNELS, WIDTH, DTYPE)
        edge += count
    put(out, row, head, HEADS, CHANNELS, WIDTH, row < num_rows, sums)


@triton.jit
def add_edge_by_edge(sums, weight_j, is_added, x, j, num_columns, head, HEADS: tl.constexpr,
                     CHANNELS: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Return ``sums`` plus the weighted sums of the pairs in ``is_added``, without other pairs,
    which may be non-finite. Vectors are read again, one at a time, because all of them would need
    too many registers."""
    for first in range(tl.min(j, axis=0), tl.max(j, axis=0) + 1):
        node = first + tl.zeros([1], tl.int32)
        x_j = gather(x, node, head, HEADS, CHANNELS, WIDTH, node < num_columns, DTYPE)
        is_it = (j == first)[None, :]
        weight = tl.sum(tl.where(is_it, weight_j, 0), axis=1)[:, None]
        added = tl.max((is_it & is_added).to(tl.int32), axis=1)[:, None] == 1
        sums += tl.where(added, weight * x_j, 0)
    return sums


@triton.jit
def _some_channels(x, node, is_node, head, first, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
                   DEPTH: tl.constexpr, DTYPE: tl.constexpr):
    """Load the channels from ``first`` on of the vectors of nodes, ``[nodes, DEPTH]``; 0 where
    masked or out of bounds."""
    channel = first + tl.arange(0, DEPTH)
    at = (node.to(tl.int64) * HEADS + head) * CHANNELS
    inside = is_node[:, None] & (channel < CHANNELS)[None, :]
    return tl.load(x + at[:, None] + channel[None, :], mask=inside, other=0).to(DTYPE)


@triton.jit
def _edges_of_program(indptr, num_rows, ROWS: tl.constexpr):
    """Return the head that this program computes, its rows, and the edges of these rows."""
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    row = first_row + tl.arange(0, ROWS)
    base, begin, end = edges_of_rows(indptr, first_row, row, row < num_rows)
    return row, tl.program_id(1), base, begin, end


@triton.jit
def edges_of_rows(indptr, first_row, row, is_row):
    """Return where the edges of consecutive rows begin, and the begin and end of each row, counted
    from there. Begin and end are in 32 bits, because registers are scarce."""
    base = tl.load(indptr + first_row)
    begin = tl.load(indptr + row, mask=is_row, other=0) - base
    end = tl.load(indptr + row + 1, mask=is_row, other=0) - base
    return base, tl.where(is_row, begin, 0).to(tl.int32), tl.where(is_row, end, 0).to(tl.int32)


@triton.jit
def next_tile(column, edge, end, num_columns, COLUMNS: tl.constexpr):
    """Return the next tile that has edges at or after ``edge``: its columns; for each pair of a row
    and a column, the offset of the edge and whether there is an edge; and the number of edges of
    each row in the tile."""
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
