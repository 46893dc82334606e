"""Rows of numbers, and the vectors that they are made of: the loops that compiled kernels share.

numba's cache on disk does not notice a change of this file: change or touch the kernels too.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from graphattn.kernels.vectors import (
    LANES,
    add,
    count,
    exp,
    fetch,
    largest_lane,
    load,
    load_four,
    maximum,
    multiply,
    multiply_add,
    seen,
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


# Threads claim spans one by one. A kernel whose phases need the results of the one before waits for
# spans, not for threads: there may be fewer of them than it was meant for. ``progress`` counts how
# many were claimed, and how many are finished, in each phase.


@jit_inline
def claim(progress, phase):
    """The number of a span that no thread has claimed, or one past them."""
    return count(progress, 2 * phase)


@jit_inline
def finish_and_claim(progress, phase):
    count(progress, 2 * phase + 1)
    return claim(progress, phase)


@jit_inline
def wait_for_all(spans, progress, phase):
    while seen(progress, 2 * phase + 1) < len(spans):
        give_way()


give_way = types.ExternalFunction('sched_yield', types.int32())


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
def whole_vectors(n):
    """``n`` in whole vectors: what remained of a row would take longer than all of it."""
    return (n + LANES - 1) // LANES * LANES


# Two vectors of four rows at once, and then what remains of the rows. One loop for both, with the
# question inside, takes a tenth longer.


@jit_inline
def dots(dot, x, row, y, shift, column, n):
    """``dot[e] = <x[row], y.flat[column[e] * y.shape[1] + shift:]>``."""
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
    if whole == 0:
        for e in range(n):
            dot[e] = 0
    if whole < width:
        flat = y.reshape(-1)
        for e in range(n):
            y_row = column[e] * stride + shift
            for c in range(whole, width):
                dot[e] += x[row, c] * flat[y_row + c]


@jit_inline
def add_weighted(total, row, weight, y, shift, column, n):
    """``total[row] += sum_e weight[e] * y.flat[column[e] * y.shape[1] + shift:]``."""
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
    if whole < width:
        flat = y.reshape(-1)
        for e in range(n):
            y_row = column[e] * stride + shift
            for c in range(whole, width):
                total[row, c] += weight[e] * flat[y_row + c]


@jit_inline
def add_weighted_and_dots(total, row, weight, dot, x, y, column, n):
    """``add_weighted`` to ``total[row]``, and to ``dot`` the ``dots`` of ``x[0]``: every row of
    ``y`` is read once."""
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
    if whole < width:
        for e in range(n):
            j = column[e]
            for c in range(whole, width):
                dot[e] += x[0, c] * y[j, c]
                total[row, c] += weight[e] * y[j, c]


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
def keep(seed, threshold, keep_scale, counter):
    """0 or ``keep_scale`` by the hash of a counter: SplitMix64 (Steele et al., 2014)."""
    bits = seed + np.uint64(counter + 1) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return keep_scale if bits >= threshold else keep_scale * 0


@jit_inline
def first_from(up, last_key, edge_key, first, last):
    """The first of a row's edges whose key is not below ``up``."""
    if up == last_key:
        return last
    while first < last and edge_key[first] < up:
        first += 1
    return first
