"""Tiles of consecutive rows whose columns are ranges: windows, causal and complete graphs, blocks.

The rows of a tile share every vector that they load, of a panel of keys or of the channels of a
value. A range needs no horizontal sums, because a vector holds one channel of many keys.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from graphattn.ops.cpu.chunks import AHEAD, aligned
from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.launch import without_owners
from graphattn.ops.cpu.rows import prefetch_row
from graphattn.ops.cpu.simd import (
    LANES,
    add,
    first_lanes,
    load,
    load_some,
    multiply_add,
    splat,
    store,
    store_some,
    vector_of,
)

_HAS_32_REGISTERS = '+avx512f' in cpu_target.target_context.codegen().magic_tuple()[2]
ROWS, _VECTORS = (8, 2) if _HAS_32_REGISTERS else (4, 1)  # sums that fit the registers
PANEL = _VECTORS * LANES
_MOST_PER_EDGE = 1.45  # pairs; blocks of 64 took longer in tiles, windows of 129 a third less
_ALONE = 2  # the time of an edge outside the common columns, relative to a pair of a tile


@jit_inline
def is_tile(edges, first, last):
    """Return whether the columns of each row are a range, and most of them common to all rows."""
    indptr, column, are_ranges, i = edges.indptr, edges.column, True, first
    num_edges, low, up = indptr[last] - indptr[first], np.int64(2**62), np.int64(0)
    begin, end = up, low
    while are_ranges and i < last:
        n = indptr[i + 1] - indptr[i]
        if n > 0:
            left, right = np.int64(column[indptr[i]]), np.int64(column[indptr[i + 1] - 1]) + 1
            are_ranges = right - left == n
            low, up, begin, end = min(low, left), max(up, right), max(begin, left), min(end, right)
        i += 1
    num_alone = num_edges - (last - first) * max(end - begin, 0)
    most = _MOST_PER_EDGE * num_edges
    return are_ranges and (up - low + PANEL) * ROWS + _ALONE * num_alone <= most


@jit
def has_tiles(edges, segment, begin, end):
    """Return whether any of the rows of a segment from ``begin`` to ``end`` are in a tile."""
    first, last = edges.row_ptr[segment], edges.row_ptr[segment + 1]
    for tile in range(first + (begin - first) // ROWS * ROWS, end, ROWS):
        if is_tile(edges, tile, min(tile + ROWS, last)):
            return True
    return False


@jit_inline
def new_panels(num_columns, x):
    return aligned((num_columns + PANEL - 1) // PANEL, PANEL * x.shape[1], x).reshape(-1)


@jit_inline
def new_tile(width, like):
    """Return space for rows of ``width`` values, which may begin and end inside panels."""
    return aligned(ROWS, (width + 4 * PANEL) // PANEL * PANEL, like).reshape(-1)


@jit_inline
def put_ranges(starts, ends, position, begin, end, begin_item, low, up, edges):
    """Write the ranges of the rows of a tile among the columns from ``low`` to ``up``, numbered
    from ``low`` on; return where the panels begin that contain them, and where the ranges end."""
    indptr, column, left, right = edges.indptr, edges.column, up - low, np.int64(0)
    for i in range(begin, end):
        r, first, last = i - begin, position[i - begin_item], indptr[i + 1]
        begins = np.int64(column[first]) if first < last else up
        starts[r] = ends[r] = 0
        if begins < up:
            starts[r], ends[r] = begins - low, min(begins - low + last - first, up - low)
            left, right = min(left, starts[r]), max(right, ends[r])
    return left // PANEL * PANEL, right


@jit_inline
def stride_of_rows(left, right):
    """Return the space of a row of a tile: its panels and a vector, an odd number of vectors."""
    return ((right - left + PANEL - 1) // PANEL * (PANEL // LANES) + 1 | 1) * LANES


@jit
def gather_panels(panels, x, low, num_keys, head, heads):
    """Copy rows of one head of ``x``, from ``low`` on, into ``[num_panels, channels, PANEL]``."""
    width = x.shape[1]
    for first in range(0, num_keys, PANEL):
        n = min(PANEL, num_keys - first)
        panel = panels[first * width:]
        for j in range(n):
            row = (low + first + j) * heads + head
            prefetch_row(x, row + 4 * AHEAD * heads)
            for c in range(width):
                panel[c * PANEL + j] = x[row, c]
        for j in range(n, PANEL):
            for c in range(width):
                panel[c * PANEL + j] = 0


@jit_inline
def gather_factors(factors, x, row, step, num_rows):
    """Copy rows of ``x`` into ``[channels, ROWS]``, and repeat the last."""
    for r in range(ROWS):
        own = row + min(r, num_rows - 1) * step
        for c in range(x.shape[1]):
            factors[c * ROWS + r] = x[own, c]


@jit_inline
def tile_dots(dot, stride, factors, panels, width, low, up):
    """Write the dot products of the rows of a tile with the keys from ``low``, where a panel
    begins, to ``up``."""
    for key in range(low, up, PANEL):
        tile = no_sums(dot)
        for c in range(width):
            tile = add_outer(tile, factors, c * ROWS, 1, panels, key * width + c * PANEL)
        store_tile(dot, key - low, stride, tile)


@jit_inline
def tile_weighted(total, total_stride, weight, stride, left, starts, ends, num_rows, y, shift,
                  width):
    """Write ``sum_j weight[r, j - left] * y.flat[j * y.shape[1] + shift:]`` over the range of each
    row ``r``, in ascending order of ``j``, so that sums do not depend on the rest of the tile.

    All rows share the columns in all ranges. Weights of the other columns are not set to 0, because
    0 times NaN is NaN."""
    begin, end = _common(starts, ends, num_rows)
    y_stride = y.shape[1]
    for c in range(0, width, PANEL):
        for r in range(num_rows):
            for at in range(c, c + PANEL, LANES):
                store(total, r * total_stride + at, splat(total.dtype.type(0)))
        _add_alone(total, total_stride, weight, stride, left, starts, ends, 0, begin, num_rows, y,
                   shift, c)
        tile = load_tile(total, c, total_stride)
        for j in range(begin, end):
            tile = add_outer(tile, weight, j - left, stride, y, j * y_stride + shift + c)
        store_tile(total, c, total_stride, tile)
        _add_alone(total, total_stride, weight, stride, left, starts, ends, end, np.int64(2**62),
                   num_rows, y, shift, c)


@jit_inline
def _add_alone(total, total_stride, weight, stride, left, starts, ends, begin, end, num_rows, y,
               shift, c):
    """Add the columns from ``begin`` to ``end`` of each row."""
    for r in range(num_rows):
        for at in range(c, c + PANEL, LANES):
            one, own = load(total, r * total_stride + at), r * stride - left
            for j in range(max(starts[r], begin), min(ends[r], end)):
                one = multiply_add(splat(weight[own + j]), load(y, j * y.shape[1] + shift + at),
                                   one)
            store(total, r * total_stride + at, one)


@jit_inline
def _common(starts, ends, num_rows):
    """Return the range that the ranges of all rows contain."""
    begin, end = starts[0], ends[0]
    for r in range(1, num_rows):
        begin, end = max(begin, starts[r]), min(end, ends[r])
    return begin, max(begin, end)


@jit_inline
def add_total(x, row, total, begin):
    """Add the row of ``total`` from ``begin`` on to ``x[row]``."""
    width = x.shape[1]
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        at = row * width + c
        store(x, at, add(load(x, at), load(total, begin + c)))
    for c in range(whole, width, LANES):
        at, some = row * width + c, first_lanes(width - c)
        store_some(x, at, add(load_some(x, at, some), load(total, begin + c)), some)


# Vectors of a tile, in registers ######################################################


@intrinsic
def borrow(typingctx, array):
    """Return an array that does not count references: a slice for each row would count two."""
    def codegen(context, builder, signature, args):
        return without_owners(context, builder, array, args[0])
    return array(array), codegen


@intrinsic
def no_sums(typingctx, like):
    """Return the zeros of a tile."""
    def codegen(context, builder, signature, args):
        zero = ir.Constant(context.get_value_type(vector_of(like)), [0.] * LANES)
        return context.make_tuple(builder, signature.return_type, [zero] * (ROWS * _VECTORS))
    return _tile_of(like)(like), codegen


@intrinsic
def load_tile(typingctx, array, position, step):
    """Load the vectors that begin at ``array.flat[position + r * step]``, for each row ``r``."""
    def codegen(context, builder, signature, args):
        return context.make_tuple(builder, signature.return_type, [
            builder.load(pointer, align=array.dtype.bitwidth // 8)
            for pointer in _vectors(context, builder, array, args, ROWS)])
    return _tile_of(array)(array, types.int64, types.int64), codegen


@intrinsic
def store_tile(typingctx, array, position, step, tile):
    def codegen(context, builder, signature, args):
        vectors = _vectors(context, builder, array, args[:3], ROWS)
        for index, pointer in enumerate(vectors):
            builder.store(builder.extract_value(args[3], index), pointer,
                          align=array.dtype.bitwidth // 8)
    return types.void(array, types.int64, types.int64, tile), codegen


@intrinsic
def add_outer(typingctx, tile, x, position, step, y, y_position):
    """Add ``x.flat[position + r * step] * y.flat[y_position:]`` to each row ``r`` of a tile."""
    def codegen(context, builder, signature, args):
        one = [args[4], args[5], ir.IntType(64)(0)]
        shared = [builder.load(pointer, align=y.dtype.bitwidth // 8)
                  for pointer in _vectors(context, builder, y, one, 1)]
        sums = []
        for pointer in _scalars(context, builder, x, args[1:4], ROWS):
            factor = _broadcast(builder, builder.load(pointer))
            sums += [builder.fadd(builder.fmul(factor, vector, flags=['contract']),
                                  builder.extract_value(args[0], len(sums) + index),
                                  flags=['contract']) for index, vector in enumerate(shared)]
        return context.make_tuple(builder, tile, sums)
    return tile(tile, x, types.int64, types.int64, y, types.int64), codegen


def _tile_of(array: types.Array) -> types.UniTuple:
    return types.UniTuple(vector_of(array), ROWS * _VECTORS)


def _scalars(context, builder, array, args, rows):
    """Return pointers to ``array.flat[position + r * step]``, for each row ``r``."""
    data = context.make_array(array)(context, builder, args[0]).data
    first = builder.gep(data, [args[1]])
    return [builder.gep(first, [builder.mul(args[2], ir.IntType(64)(r))]) for r in range(rows)]


def _vectors(context, builder, array, args, rows):
    kind = context.get_value_type(vector_of(array)).as_pointer()
    return [builder.bitcast(builder.gep(pointer, [ir.IntType(64)(v * LANES)]), kind)
            for pointer in _scalars(context, builder, array, args, rows) for v in range(_VECTORS)]


def _broadcast(builder, scalar):
    vector = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    vector = builder.insert_element(vector, scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(vector, vector,
                                  ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))
