"""Rows of numbers, and the vectors that they are made of: the loops that compiled kernels share.

numba's cache on disk does not notice a change of this file: change or touch the kernels too.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graphattn.kernels.vectors import (
    LANES,
    add,
    exp,
    fetch,
    largest_lane,
    load,
    maximum,
    multiply,
    multiply_add,
    splat,
    store,
    sum_lanes,
    sum_lanes_of_each,
)

# Sums may be reordered, which is what lets them run in vector registers; NaN and inf stay exact.
_OPTIONS = {'cache': True, 'nogil': True, 'error_model': 'numpy',
            'fastmath': {'reassoc', 'contract', 'nsz', 'arcp'}}
jit, jit_inline = njit(**_OPTIONS), njit(**_OPTIONS, forceinline=True)

GRAIN = 1 << 17  # multiplications that are worth a thread
AHEAD = 4  # rows; the machine sees the next one coming only where rows follow one another


@jit
def cut_into_spans(indptr, query_ptr, heads, num_parts):
    """All spans, and where those of each part begin."""
    num_blocks = len(query_ptr) - 1
    spans = np.empty((num_blocks * heads + num_parts - 1, 5), np.int64)
    num_edges, end_span, done, part = indptr[-1] * heads, 0, 0, 1
    part_ptr = np.zeros(num_parts + 1, np.int64)
    for block in range(num_blocks):
        begin, end = query_ptr[block], query_ptr[block + 1]
        size = indptr[end] - indptr[begin]
        for head in range(heads):
            first = begin
            while part < num_parts and num_edges * part // num_parts < done + size:
                rest = num_edges * part // num_parts - done
                cut = begin + np.searchsorted(indptr[begin:end + 1], indptr[begin] + rest)
                if cut > first:
                    spans[end_span] = head, first, cut, block, int(first > begin)
                    end_span += 1
                first, part_ptr[part], part = cut, end_span, part + 1
            spans[end_span] = head, first, end, block, int(first > begin)
            end_span, done = end_span + 1, done + size
    part_ptr[num_parts] = end_span
    return spans[:end_span], part_ptr


@jit
def most_rows(spans):
    most = 0
    for span in range(len(spans)):
        most = max(most, spans[span, 2] - spans[span, 1])
    return most


@jit
def longest_row(spans, indptr):
    """The most edges of a row, in whole vectors and one more."""
    longest = 0
    for span in range(len(spans)):
        for i in range(spans[span, 1], spans[span, 2]):
            longest = max(longest, indptr[i + 1] - indptr[i])
    return whole_vectors(longest) + LANES


@jit_inline
def fetch_row(x, row):
    width = x.shape[1]
    for c in range(0, width, LANES):
        fetch(x, row * width + c)


@jit_inline
def multiply_row(x, row, factor):
    width = x.shape[1]
    whole, many = width // LANES * LANES, splat(factor)
    for c in range(0, whole, LANES):
        store(x, row * width + c, multiply(load(x, row * width + c), many))
    for c in range(whole, width):
        x[row, c] *= factor


@jit_inline
def add_row(x, row, factor, y, y_row):
    """``x[row] += factor * y[y_row]``."""
    width = x.shape[1]
    whole, many = width // LANES * LANES, splat(factor)
    for c in range(0, whole, LANES):
        at = row * width + c
        store(x, at, multiply_add(many, load(y, y_row * width + c), load(x, at)))
    for c in range(whole, width):
        x[row, c] += factor * y[y_row, c]


@jit_inline
def dot_of_rows(x, y, row):
    total = x.dtype.type(0)
    for c in range(x.shape[1]):
        total += x[row, c] * y[row, c]
    return total


@jit_inline
def copy_row(target, row, shift, x, x_row, x_shift, width):
    at, x_at = row * target.shape[1] + shift, x_row * x.shape[1] + x_shift
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        store(target, at + c, load(x, x_at + c))
    for c in range(whole, width):
        target[row, shift + c] = x[x_row, x_shift + c]


@jit_inline
def clear_row(x, row):
    width = x.shape[1]
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        store(x, row * width + c, splat(x.dtype.type(0)))
    for c in range(whole, width):
        x[row, c] = 0


@jit_inline
def locate(offset, edge_key, first, n, low, width):
    """Where the row of each edge's key begins; for three more, that of the last."""
    for e in range(n):
        offset[e] = (edge_key[first + e] - low) * width
    for e in range(n, n + 3):
        offset[e] = offset[n - 1]


@jit_inline
def whole_vectors(n):
    """``n`` in whole vectors: what remained of a row would take longer than all of it."""
    return (n + LANES - 1) // LANES * LANES


@jit_inline
def dots(dot, x, row, y, shift, offset, n):
    """``dot[e] = <x[row], y.flat[offset[e] + shift:]>``, four at once to read ``x`` once.

    Writes up to three numbers more than the ``n`` that are asked for.
    """
    width = x.shape[1]
    whole, zero, x_row = width // LANES * LANES, x.dtype.type(0), row * width
    for e in range(0, n, 4):
        y0, y1, y2, y3 = offset[e], offset[e + 1], offset[e + 2], offset[e + 3]
        sum0 = sum1 = sum2 = sum3 = splat(zero)
        for c in range(0, whole, LANES):
            x_c, at = load(x, x_row + c), shift + c
            sum0 = multiply_add(x_c, load(y, y0 + at), sum0)
            sum1 = multiply_add(x_c, load(y, y1 + at), sum1)
            sum2 = multiply_add(x_c, load(y, y2 + at), sum2)
            sum3 = multiply_add(x_c, load(y, y3 + at), sum3)
        store(dot, e, sum_lanes_of_each(sum0, sum1, sum2, sum3))
    if whole < width:
        for e in range(n):
            j = offset[e] // y.shape[1]
            for c in range(whole, width):
                dot[e] += x[row, c] * y[j, shift + c]


@jit_inline
def add_weighted(total, row, weight, y, shift, offset, n):
    """``total[row] += sum_e weight[e] * y.flat[offset[e] + shift:]``."""
    width = total.shape[1]
    whole, zero, total_row = width // LANES * LANES, y.dtype.type(0), row * width
    for c in range(0, whole - LANES, 2 * LANES):  # two vectors at once to read a weight once
        at, next_at = shift + c, shift + c + LANES
        sum0, sum1 = load(total, total_row + c), load(total, total_row + c + LANES)
        sum2 = sum3 = splat(zero)
        for e in range(0, n - 1, 2):
            many, other = splat(weight[e]), splat(weight[e + 1])
            sum0 = multiply_add(many, load(y, offset[e] + at), sum0)
            sum1 = multiply_add(many, load(y, offset[e] + next_at), sum1)
            sum2 = multiply_add(other, load(y, offset[e + 1] + at), sum2)
            sum3 = multiply_add(other, load(y, offset[e + 1] + next_at), sum3)
        if n % 2:
            many = splat(weight[n - 1])
            sum0 = multiply_add(many, load(y, offset[n - 1] + at), sum0)
            sum1 = multiply_add(many, load(y, offset[n - 1] + next_at), sum1)
        store(total, total_row + c, add(sum0, sum2))
        store(total, total_row + c + LANES, add(sum1, sum3))
    for c in range(whole // (2 * LANES) * (2 * LANES), whole, LANES):
        sum0, at = load(total, total_row + c), shift + c
        sum1 = sum2 = sum3 = splat(zero)
        for e in range(0, n - 3, 4):
            sum0 = multiply_add(splat(weight[e]), load(y, offset[e] + at), sum0)
            sum1 = multiply_add(splat(weight[e + 1]), load(y, offset[e + 1] + at), sum1)
            sum2 = multiply_add(splat(weight[e + 2]), load(y, offset[e + 2] + at), sum2)
            sum3 = multiply_add(splat(weight[e + 3]), load(y, offset[e + 3] + at), sum3)
        for e in range(n // 4 * 4, n):
            sum0 = multiply_add(splat(weight[e]), load(y, offset[e] + at), sum0)
        store(total, total_row + c, add(add(sum0, sum1), add(sum2, sum3)))
    if whole < width:
        for e in range(n):
            j = offset[e] // y.shape[1]
            for c in range(whole, width):
                total[row, c] += weight[e] * y[j, shift + c]


@jit_inline
def add_weighted_and_dots(total, row, weight, dot, x, y, offset, n):
    """``add_weighted`` to ``total[row]``, and ``dots`` of ``x[0]``: every row of ``y`` is read
    once."""
    width = total.shape[1]
    whole, zero, end = width // LANES * LANES, y.dtype.type(0), n // 4 * 4
    for e in range(0, end, 4):
        y0, y1, y2, y3 = offset[e], offset[e + 1], offset[e + 2], offset[e + 3]
        many0, many1 = splat(weight[e]), splat(weight[e + 1])
        many2, many3 = splat(weight[e + 2]), splat(weight[e + 3])
        sum0 = sum1 = sum2 = sum3 = splat(zero)
        for c in range(0, whole, LANES):
            x_c, at = load(x, c), row * width + c
            row0, row1 = load(y, y0 + c), load(y, y1 + c)
            row2, row3 = load(y, y2 + c), load(y, y3 + c)
            sum0, sum1 = multiply_add(x_c, row0, sum0), multiply_add(x_c, row1, sum1)
            sum2, sum3 = multiply_add(x_c, row2, sum2), multiply_add(x_c, row3, sum3)
            pair = multiply_add(many1, row1, multiply(many0, row0))
            other = multiply_add(many3, row3, multiply(many2, row2))
            store(total, at, add(load(total, at), add(pair, other)))
        store(dot, e, sum_lanes_of_each(sum0, sum1, sum2, sum3))
    if whole < width:
        for e in range(end):
            j = offset[e] // y.shape[1]
            for c in range(whole, width):
                dot[e] += x[0, c] * y[j, c]
                total[row, c] += weight[e] * y[j, c]
    if end < n:
        dots(dot[end:], x, 0, y, 0, offset[end:], n - end)
        add_weighted(total, row, weight[end:], y, 0, offset[end:], n - end)


@jit_inline
def exponentials(logit, n, high):
    """The first ``n`` less the highest so far, exponentiated in place; that one, and their sum."""
    end, bottom = whole_vectors(n), logit.dtype.type(-np.inf)
    for e in range(n, end):
        logit[e] = bottom
    highest_lane = splat(high)
    for e in range(0, end, LANES):
        highest_lane = maximum(load(logit, e), highest_lane)
    high = largest_lane(highest_lane)
    shift = high if high > bottom else logit.dtype.type(0)  # else -inf less -inf
    for e in range(end):
        logit[e] = exp(logit[e] - shift)
    total = load(logit, 0)
    for e in range(LANES, end, LANES):
        total = add(total, load(logit, e))
    return high, sum_lanes(total)


@jit_inline
def modify(logit, bias, gate, scale, first, n, head):
    for e in range(whole_vectors(n)):
        logit[e] *= scale
    if gate.shape[0] > 0:
        column = min(head, gate.shape[1] - 1)
        for e in range(n):
            logit[e] *= gate[first + e, column]
    if bias.shape[0] > 0:
        column = min(head, bias.shape[1] - 1)
        for e in range(n):
            logit[e] += bias[first + e, column]


@jit_inline
def first_from(up, last_key, edge_key, first, last):
    """The first of a row's edges whose key is not below ``up``."""
    if up == last_key:
        return last
    while first < last and edge_key[first] < up:
        first += 1
    return first
