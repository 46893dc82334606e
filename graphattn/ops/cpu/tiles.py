"""Tiles of consecutive rows and ranges of consecutive columns, as in windows, causal graphs,
complete graphs and blocks.

All rows of a tile use every SIMD vector that is loaded. Keys are stored in *panels*: a SIMD vector
has one channel of many consecutive keys, so a dot product needs no sum over lanes.
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
from graphattn.ops.cpu.rows import copy_row, prefetch_row
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
ROWS, _VECTORS = (8, 2) if _HAS_32_REGISTERS else (4, 1)  # of a tile, so that sums fit in registers
PANEL = _VECTORS * LANES  # number of keys of a panel
_ALONE = 2  # time of an edge in a column that not all rows share, relative to a pair of a tile


@jit
def in_tiles(edges, most, fixed):
    """Return which segments are faster in tiles, those of at most ``most`` pairs for each edge."""
    # the overhead of each row of a tile counts as ``fixed`` pairs
    num_segments = len(edges.row_ptr) - 1
    are_tiled = np.empty(num_segments, np.bool_)
    for segment in range(num_segments):
        are_tiled[segment] = _is_tiled(edges, segment, most, fixed)
    return are_tiled


@jit
def _is_tiled(edges, segment, most, fixed):
    begin, end = edges.row_ptr[segment], edges.row_ptr[segment + 1]
    low, up = edges.column_ptr[segment], edges.column_ptr[segment + 1]
    position, starts, ends = (np.empty(ROWS, np.int64), np.empty(ROWS, np.int64),
                              np.empty(ROWS, np.int64))
    spare = (most - 1) * (edges.indptr[end] - edges.indptr[begin])
    for first in range(begin, end, ROWS):
        n = min(ROWS, end - first)
        for r in range(n):
            position[r] = edges.indptr[first + r]
        left, right = next_ranges(starts, ends, position, first, n, first, low, up, edges)
        while left < right:
            low_all, up_all = _common(starts, ends)
            spare -= ROWS * (fixed + whole_panels(right - left))
            for r in range(n):
                num_edges = ends[r] - starts[r]
                position[r] += num_edges
                if num_edges > 0:
                    spare += num_edges - _ALONE * (num_edges - (up_all - low_all))
            if spare < fixed * (end - first - n):  # other tiles take at least this
                return False
            left, right = next_ranges(starts, ends, position, first, n, first, low, up, edges)
    return True


@jit_inline
def whole_panels(width):
    return (width + PANEL - 1) // PANEL * PANEL


@jit_inline
def new_panels(num_columns, x):
    return aligned(whole_panels(num_columns), x.shape[1], x).reshape(-1)


@jit_inline
def new_tile(width, like):
    """Return a flat array of zeros for ``ROWS`` rows of ``width`` values."""
    # with extra space, because a row may begin and end inside a panel
    tile = aligned(ROWS, (width + 4 * PANEL) // PANEL * PANEL, like).reshape(-1)
    # Vectors that no channel or key fills are multiplied too, and a denormal number, which memory
    # may contain, takes a hundred times as long.
    tile[:] = 0
    return tile


@jit_inline
def next_ranges(starts, ends, position, begin, num_rows, begin_item, low, up, edges):
    """Find the next range of consecutive columns of each row of a tile, in ``low:up``."""
    # starts, ends: the ranges, [ROWS], numbered from ``low`` on; 0 and 0 without one. position: the
    # next edge of each row of a work item, whose first row is begin_item
    indptr, column, left, right = edges.indptr, edges.column, up - low, np.int64(0)
    for r in range(ROWS):
        starts[r] = ends[r] = 0
    for r in range(num_rows):
        first, last = position[begin - begin_item + r], indptr[begin + r + 1]
        start = np.int64(column[first]) - low if first < last else up - low
        if start < up - low:
            end = start + _end_of_range(column, first, last) - first
            starts[r], ends[r] = start, min(end, up - low)
            left, right = min(left, start), max(right, ends[r])
    # all ranges lie between these; no row has a range if the first is not below the second
    return left // PANEL * PANEL, right


@jit_inline
def _end_of_range(column, first, last):
    # the columns of a row ascend, so bisection finds the end
    inside, end, middle = first, last, last - 1
    while inside + 1 < end:
        if column[middle] - column[first] == middle - first:
            inside = middle
        else:
            end = middle
        middle = (inside + end) // 2
    return end


@jit_inline
def stride_of_rows(left, right):
    """Return the distance between the rows of a tile, an odd number of SIMD vectors."""
    return (whole_panels(right - left) // LANES + 1 | 1) * LANES


@jit
def gather_panels(panels, x, low, num_keys, head, heads):
    """Copy ``x[low:low + num_keys, head]`` to ``panels``, filled up with zeros."""
    # panels: flat [num_panels, channels, PANEL]; x: [nodes * heads, channels]
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
def gather_tile(tile, x, row, step, num_rows):
    """Copy ``x[row + r * step]`` to row r of the flat ``tile``, for ``num_rows`` rows."""
    space = len(tile) // ROWS
    rows = tile.reshape(ROWS, space)
    for r in range(num_rows):
        copy_row(rows, r, 0, x, row + r * step, 0, x.shape[1])


@jit_inline
def prefetch_tile(x, row, step):
    # the rows that the next tile will read
    for r in range(ROWS, 2 * ROWS):
        prefetch_row(x, row + r * step)


@jit_inline
def tile_dots(dot, stride, x, panels, width, low, up):
    """Write the dot products of the rows of tile ``x`` with keys ``low:up`` to ``dot``."""
    # dot: flat [ROWS, stride]; a panel must begin at ``low``
    space = len(x) // ROWS
    for key in range(low, up, PANEL):
        tile = no_sums(dot)
        for c in range(width):
            tile = add_outer(tile, x, c, space, panels, key * width + c * PANEL)
        store_tile(dot, key - low, stride, tile)


@jit_inline
def tile_weighted(total, weight, stride, left, starts, ends, num_rows, y, width):
    """Write ``sum_j weight[r, j - left] * y[j]`` over the range of row r to ``total[r]``."""
    # Columns are added in ascending order, so a sum does not depend on the other rows: those that
    # all ranges contain for all rows together, the others row by row, because 0 times NaN is NaN. A
    # row without a range gets arbitrary numbers.
    begin, end = _common(starts, ends)
    space, y_stride = len(total) // ROWS, y.shape[1]
    for c in range(0, width, PANEL):
        store_tile(total, c, space, no_sums(total))
        _add_alone(total, weight, stride, left, starts, ends, 0, begin, num_rows, y, c)
        tile = load_tile(total, c, space)
        for j in range(begin, end):
            tile = add_outer(tile, weight, j - left, stride, y, j * y_stride + c)
        store_tile(total, c, space, tile)
        _add_alone(total, weight, stride, left, starts, ends, end, y.shape[0], num_rows, y, c)


@jit_inline
def _add_alone(total, weight, stride, left, starts, ends, begin, end, num_rows, y, c):
    space = len(total) // ROWS
    for r in range(num_rows):
        for at in range(c, c + PANEL, LANES):
            one, own = load(total, r * space + at), r * stride - left
            for j in range(max(starts[r], begin), min(ends[r], end)):
                one = multiply_add(splat(weight[own + j]), load(y, j * y.shape[1] + at), one)
            store(total, r * space + at, one)


@jit_inline
def tile_scatter(y, shift, weight, stride, left, starts, ends, x, width):
    """Add ``weight[r, j - left] * x[r]`` to ``y[j, shift:]`` for each j in the range of row r."""
    space, y_stride = len(x) // ROWS, y.shape[1]
    # weight: flat [ROWS, stride]; rows are added in ascending order
    begin, end = _common(starts, ends)
    for r in range(ROWS):
        end = end if starts[r] < ends[r] else begin
    for c in range(0, width, PANEL):
        tile = load_tile(x, c, space)
        for j in range(begin, end):
            add_inner(y, j * y_stride + shift + c, tile, weight, j - left, stride)
        for r in range(ROWS):
            own = r * stride - left
            _scatter_alone(y, shift, weight, own, starts[r], min(ends[r], begin), x, r * space, c)
            _scatter_alone(y, shift, weight, own, max(starts[r], end), ends[r], x, r * space, c)


@jit_inline
def _scatter_alone(y, shift, weight, own, begin, end, x, x_row, c):
    for at in range(c, c + PANEL, LANES):
        one = load(x, x_row + at)
        for j in range(begin, end):
            y_at = j * y.shape[1] + shift + at
            store(y, y_at, multiply_add(splat(weight[own + j]), one, load(y, y_at)))


@jit_inline
def _common(starts, ends):
    # rows without a range are left out
    begin, end = np.int64(0), np.int64(2**62)
    for r in range(ROWS):
        if starts[r] < ends[r]:
            begin, end = max(begin, starts[r]), min(end, ends[r])
    return begin, max(begin, end)


@jit_inline
def add_total(x, row, total, r):
    width, begin = x.shape[1], r * (len(total) // ROWS)
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
    """Return ``array`` without reference counting; the caller holds a reference."""
    def codegen(context, builder, signature, args):
        # each slice of a row would change the count twice
        return without_owners(context, builder, array, args[0])
    return array(array), codegen


@intrinsic
def no_sums(typingctx, like):
    """Return a tile of zeros in registers: the vectors of one panel for each of ``ROWS`` rows."""
    def codegen(context, builder, signature, args):
        zero = ir.Constant(context.get_value_type(vector_of(like)), [0.] * LANES)
        return context.make_tuple(builder, signature.return_type, [zero] * (ROWS * _VECTORS))
    return _tile_of(like)(like), codegen


@intrinsic
def load_tile(typingctx, array, position, step):
    """Return a tile; row r has the ``PANEL`` values from ``array.flat[position + r * step]`` on."""
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
    """Return ``tile`` plus ``x.flat[position + r * step]`` times ``PANEL`` values of ``y``."""
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


@intrinsic
def add_inner(typingctx, y, y_position, tile, x, position, step):
    """Add ``sum_r x.flat[position + r * step] * tile[r]`` to ``PANEL`` values of ``y``."""
    def codegen(context, builder, signature, args):
        factors = [_broadcast(builder, builder.load(pointer))
                   for pointer in _scalars(context, builder, x, args[3:], ROWS)]
        one = [*args[:2], ir.IntType(64)(0)]
        for v, pointer in enumerate(_vectors(context, builder, y, one, 1)):
            total = builder.load(pointer, align=y.dtype.bitwidth // 8)
            for r, factor in enumerate(factors):
                vector = builder.extract_value(args[2], r * _VECTORS + v)
                total = builder.fadd(builder.fmul(factor, vector, flags=['contract']), total,
                                     flags=['contract'])
            builder.store(total, pointer, align=y.dtype.bitwidth // 8)
    return types.void(y, types.int64, tile, x, types.int64, types.int64), codegen


def _tile_of(array: types.Array) -> types.UniTuple:
    return types.UniTuple(vector_of(array), ROWS * _VECTORS)


def _scalars(context, builder, array, args, rows):
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
