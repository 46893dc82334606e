"""Dot products and weighted sums along the edges of one row. The vectors of its columns are
gathered from an array."""

from __future__ import annotations

from graphattn.ops.cpu.jit import jit_inline
from graphattn.ops.cpu.simd import (
    LANES,
    add,
    first_lanes,
    load,
    load_four,
    load_some,
    multiply,
    multiply_add,
    splat,
    store,
    store_some,
    sum_lanes,
    sum_lanes_of_each,
)

# Each function has a loop over two SIMD vectors of several edges at a time, then code for a single
# vector, and then code for some lanes of a vector. A single loop with a branch takes a tenth
# longer, and loads with a mask are slow without AVX-512.
#
# The vector of edge e begins at element ``column[e] * y.shape[1] + shift`` of the array y.


@jit_inline
def dots(dot, x, row, y, shift, column, n):
    """Write ``<x[row], y_e>`` to ``dot[e]`` for ``n`` edges."""
    # y_e begins at y.flat[column[e] * y.shape[1] + shift], here and in the functions below
    width, stride, end = x.shape[1], y.shape[1], n // 4 * 4
    whole = width // LANES * LANES
    for c in range(0, whole - LANES, 2 * LANES):
        at, x0, x1 = shift + c, load(x, row * width + c), load(x, row * width + c + LANES)
        for e in range(0, end, 4):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            y2, y3 = column[e + 2] * stride + at, column[e + 3] * stride + at
            sum0 = multiply_add(x1, load(y, y0 + LANES), multiply(x0, load(y, y0)))
            sum1 = multiply_add(x1, load(y, y1 + LANES), multiply(x0, load(y, y1)))
            sum2 = multiply_add(x1, load(y, y2 + LANES), multiply(x0, load(y, y2)))
            sum3 = multiply_add(x1, load(y, y3 + LANES), multiply(x0, load(y, y3)))
            four = sum_lanes_of_each(sum0, sum1, sum2, sum3)
            store(dot, e, four if c == 0 else add(four, load_four(dot, e)))
        for e in range(end, n):
            y0 = column[e] * stride + at
            one = sum_lanes(multiply_add(x1, load(y, y0 + LANES), multiply(x0, load(y, y0))))
            dot[e] = one if c == 0 else dot[e] + one
    if whole % (2 * LANES) > 0:
        at, x0 = shift + whole - LANES, load(x, row * width + whole - LANES)
        for e in range(0, end, 4):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            y2, y3 = column[e + 2] * stride + at, column[e + 3] * stride + at
            four = sum_lanes_of_each(multiply(x0, load(y, y0)), multiply(x0, load(y, y1)),
                                     multiply(x0, load(y, y2)), multiply(x0, load(y, y3)))
            store(dot, e, four if whole == LANES else add(four, load_four(dot, e)))
        for e in range(end, n):
            one = sum_lanes(multiply(x0, load(y, column[e] * stride + at)))
            dot[e] = one if whole == LANES else dot[e] + one
    if width == 0:
        for e in range(n):
            dot[e] = 0
    for c in range(whole, width, LANES):
        some = first_lanes(width - c)
        at, x0 = shift + c, load_some(x, row * width + c, some)
        for e in range(0, end, 4):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            y2, y3 = column[e + 2] * stride + at, column[e + 3] * stride + at
            four = sum_lanes_of_each(
                multiply(x0, load_some(y, y0, some)), multiply(x0, load_some(y, y1, some)),
                multiply(x0, load_some(y, y2, some)), multiply(x0, load_some(y, y3, some)))
            store(dot, e, four if c == 0 else add(four, load_four(dot, e)))
        for e in range(end, n):
            one = sum_lanes(multiply(x0, load_some(y, column[e] * stride + at, some)))
            dot[e] = one if c == 0 else dot[e] + one


@jit_inline
def add_weighted(total, row, weight, y, shift, column, n):
    """Add ``sum_e weight[e] * y_e`` over ``n`` edges to ``total[row]``."""
    width, stride, end = total.shape[1], y.shape[1], n // 4 * 4
    whole, zero = width // LANES * LANES, y.dtype.type(0)
    for c in range(0, whole - LANES, 2 * LANES):
        at, total_at = shift + c, row * width + c
        total0, total1 = load(total, total_at), load(total, total_at + LANES)
        other0 = other1 = splat(zero)
        for e in range(0, end, 4):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            y2, y3 = column[e + 2] * stride + at, column[e + 3] * stride + at
            many0, many1 = splat(weight[e]), splat(weight[e + 1])
            many2, many3 = splat(weight[e + 2]), splat(weight[e + 3])
            total0 = multiply_add(many0, load(y, y0), total0)
            total1 = multiply_add(many0, load(y, y0 + LANES), total1)
            other0 = multiply_add(many1, load(y, y1), other0)
            other1 = multiply_add(many1, load(y, y1 + LANES), other1)
            total0 = multiply_add(many2, load(y, y2), total0)
            total1 = multiply_add(many2, load(y, y2 + LANES), total1)
            other0 = multiply_add(many3, load(y, y3), other0)
            other1 = multiply_add(many3, load(y, y3 + LANES), other1)
        for e in range(end, n):
            y0, many0 = column[e] * stride + at, splat(weight[e])
            total0 = multiply_add(many0, load(y, y0), total0)
            total1 = multiply_add(many0, load(y, y0 + LANES), total1)
        store(total, total_at, add(total0, other0))
        store(total, total_at + LANES, add(total1, other1))
    if whole % (2 * LANES) > 0:
        at, total_at = shift + whole - LANES, row * width + whole - LANES
        total0, total1 = load(total, total_at), splat(zero)
        other0 = other1 = splat(zero)
        for e in range(0, end, 4):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            y2, y3 = column[e + 2] * stride + at, column[e + 3] * stride + at
            total0 = multiply_add(splat(weight[e]), load(y, y0), total0)
            total1 = multiply_add(splat(weight[e + 1]), load(y, y1), total1)
            other0 = multiply_add(splat(weight[e + 2]), load(y, y2), other0)
            other1 = multiply_add(splat(weight[e + 3]), load(y, y3), other1)
        for e in range(end, n):
            total0 = multiply_add(splat(weight[e]), load(y, column[e] * stride + at), total0)
        store(total, total_at, add(add(total0, other0), add(total1, other1)))
    for c in range(whole, width, LANES):
        some, total_at = first_lanes(width - c), row * width + c
        at, total0, total1 = shift + c, load_some(total, total_at, some), splat(zero)
        other0 = other1 = splat(zero)
        for e in range(0, end, 4):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            y2, y3 = column[e + 2] * stride + at, column[e + 3] * stride + at
            total0 = multiply_add(splat(weight[e]), load_some(y, y0, some), total0)
            total1 = multiply_add(splat(weight[e + 1]), load_some(y, y1, some), total1)
            other0 = multiply_add(splat(weight[e + 2]), load_some(y, y2, some), other0)
            other1 = multiply_add(splat(weight[e + 3]), load_some(y, y3, some), other1)
        for e in range(end, n):
            y0 = column[e] * stride + at
            total0 = multiply_add(splat(weight[e]), load_some(y, y0, some), total0)
        store_some(total, total_at, add(add(total0, other0), add(total1, other1)), some)


@jit_inline
def add_weighted_and_dots(total, row, weight, dot, x, y, column, n):
    """Add as :func:`add_weighted` does, and ``<x[0], y[column[e]]>`` to ``dot[e]``."""
    width, end = total.shape[1], n // 4 * 4
    whole, zero = width // LANES * LANES, y.dtype.type(0)
    for c in range(0, whole - LANES, 2 * LANES):
        at, x0, x1 = row * width + c, load(x, c), load(x, c + LANES)
        total0, total1 = load(total, at), load(total, at + LANES)
        other0 = other1 = splat(zero)
        for e in range(0, end, 4):
            y0, y1 = column[e] * width + c, column[e + 1] * width + c
            y2, y3 = column[e + 2] * width + c, column[e + 3] * width + c
            many0, many1 = splat(weight[e]), splat(weight[e + 1])
            many2, many3 = splat(weight[e + 2]), splat(weight[e + 3])
            row0, next0 = load(y, y0), load(y, y0 + LANES)
            row1, next1 = load(y, y1), load(y, y1 + LANES)
            row2, next2 = load(y, y2), load(y, y2 + LANES)
            row3, next3 = load(y, y3), load(y, y3 + LANES)
            sum0, sum1 = multiply(x0, row0), multiply(x0, row1)
            sum2, sum3 = multiply(x0, row2), multiply(x0, row3)
            sum0, sum1 = multiply_add(x1, next0, sum0), multiply_add(x1, next1, sum1)
            sum2, sum3 = multiply_add(x1, next2, sum2), multiply_add(x1, next3, sum3)
            total0, total1 = multiply_add(many0, row0, total0), multiply_add(many0, next0, total1)
            other0, other1 = multiply_add(many1, row1, other0), multiply_add(many1, next1, other1)
            total0, total1 = multiply_add(many2, row2, total0), multiply_add(many2, next2, total1)
            other0, other1 = multiply_add(many3, row3, other0), multiply_add(many3, next3, other1)
            store(dot, e, add(sum_lanes_of_each(sum0, sum1, sum2, sum3), load_four(dot, e)))
        for e in range(end, n):
            y0, many0 = column[e] * width + c, splat(weight[e])
            row0, next0 = load(y, y0), load(y, y0 + LANES)
            total0, total1 = multiply_add(many0, row0, total0), multiply_add(many0, next0, total1)
            dot[e] += sum_lanes(multiply_add(x1, next0, multiply(x0, row0)))
        store(total, at, add(total0, other0))
        store(total, at + LANES, add(total1, other1))
    if whole % (2 * LANES) > 0:
        c = whole - LANES
        at, x0, total0 = row * width + c, load(x, c), load(total, row * width + c)
        for e in range(n):
            row0 = load(y, column[e] * width + c)
            total0 = multiply_add(splat(weight[e]), row0, total0)
            dot[e] += sum_lanes(multiply(x0, row0))
        store(total, at, total0)
    for c in range(whole, width, LANES):
        some, at = first_lanes(width - c), row * width + c
        x0, total0 = load_some(x, c, some), load_some(total, at, some)
        for e in range(n):
            row0 = load_some(y, column[e] * width + c, some)
            total0 = multiply_add(splat(weight[e]), row0, total0)
            dot[e] += sum_lanes(multiply(x0, row0))
        store_some(total, at, total0, some)


@jit_inline
def scatter(y, shift, weight, x, row, column, n):
    """Add ``weight[e] * x[row]`` to ``y_e``, for each of ``n`` edges."""
    width, stride = x.shape[1], y.shape[1]
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        x_c, at = load(x, row * width + c), shift + c
        for e in range(n):
            y_e = column[e] * stride + at
            store(y, y_e, multiply_add(splat(weight[e]), x_c, load(y, y_e)))
    for c in range(whole, width, LANES):
        some, at = first_lanes(width - c), shift + c
        x_c = load_some(x, row * width + c, some)
        for e in range(n):
            y_e = column[e] * stride + at
            store_some(y, y_e, multiply_add(splat(weight[e]), x_c, load_some(y, y_e, some)), some)


@jit_inline
def add_products(total, x, row, weight, y, shift, to_grad, column, n):
    """Add as :func:`add_weighted` does, and ``weight[e] * x[row]`` to ``y_e``'s gradient."""
    # the gradient begins ``to_grad`` elements behind y_e
    width, stride, end = x.shape[1], y.shape[1], n // 2 * 2
    whole, begin, zero = width // LANES * LANES, row * width, y.dtype.type(0)
    for c in range(0, whole - LANES, 2 * LANES):
        at, total_at = shift + c, begin + c
        x0, x1 = load(x, total_at), load(x, total_at + LANES)
        total0, total1 = load(total, total_at), load(total, total_at + LANES)
        other0 = other1 = splat(zero)
        for e in range(0, end, 2):
            y0, y1 = column[e] * stride + at, column[e + 1] * stride + at
            many0, many1 = splat(weight[e]), splat(weight[e + 1])
            total0 = multiply_add(many0, load(y, y0), total0)
            total1 = multiply_add(many0, load(y, y0 + LANES), total1)
            other0 = multiply_add(many1, load(y, y1), other0)
            other1 = multiply_add(many1, load(y, y1 + LANES), other1)
            y0, y1 = y0 + to_grad, y1 + to_grad
            store(y, y0, multiply_add(many0, x0, load(y, y0)))
            store(y, y0 + LANES, multiply_add(many0, x1, load(y, y0 + LANES)))
            store(y, y1, multiply_add(many1, x0, load(y, y1)))
            store(y, y1 + LANES, multiply_add(many1, x1, load(y, y1 + LANES)))
        for e in range(end, n):
            y0, many0 = column[e] * stride + at, splat(weight[e])
            total0 = multiply_add(many0, load(y, y0), total0)
            total1 = multiply_add(many0, load(y, y0 + LANES), total1)
            y0 += to_grad
            store(y, y0, multiply_add(many0, x0, load(y, y0)))
            store(y, y0 + LANES, multiply_add(many0, x1, load(y, y0 + LANES)))
        store(total, total_at, add(total0, other0))
        store(total, total_at + LANES, add(total1, other1))
    if whole % (2 * LANES) > 0:
        at, total_at = shift + whole - LANES, begin + whole - LANES
        x0, total0 = load(x, total_at), load(total, total_at)
        for e in range(n):
            y0, many0 = column[e] * stride + at, splat(weight[e])
            total0 = multiply_add(many0, load(y, y0), total0)
            y0 += to_grad
            store(y, y0, multiply_add(many0, x0, load(y, y0)))
        store(total, total_at, total0)
    for c in range(whole, width, LANES):
        some, at, total_at = first_lanes(width - c), shift + c, begin + c
        x0, total0 = load_some(x, total_at, some), load_some(total, total_at, some)
        for e in range(n):
            y0, many0 = column[e] * stride + at, splat(weight[e])
            total0 = multiply_add(many0, load_some(y, y0, some), total0)
            y0 += to_grad
            store_some(y, y0, multiply_add(many0, x0, load_some(y, y0, some)), some)
        store_some(total, total_at, total0, some)
