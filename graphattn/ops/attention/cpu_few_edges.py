"""Attention along rows of few edges, in loops for CPUs that compute many rows together.

For a molecule, copying keys, clearing sums and filling whole SIMD vectors of logits for each row
takes longer than the computation. Here, consecutive rows share vectors, and no key is copied.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from graphattn.ops.cpu.jit import jit_inline
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.rows import add_row, clear_row, dot_of_rows, whole_vectors
from graphattn.ops.cpu.schedule import GRAIN, Edges, max_row_length, next_item, worthwhile_parts
from graphattn.ops.cpu.simd import (
    LANES,
    exp,
    first_lanes,
    load,
    load_some,
    multiply,
    multiply_add,
    splat,
    store,
    store_some,
    sum_lanes_of_each,
)
from graphattn.ops.cpu.softmax import (
    drop_out,
    keep,
    modify,
    modify_backward,
    put_max_inv_sum,
)


def has_few_edges(edges: Edges) -> bool:
    """Return whether a graph is faster without copies of its keys, which stay in the cache."""
    num_rows, num_edges = len(edges.indptr) - 1, int(edges.indptr[-1])
    return num_edges <= min(_EDGES_OF_A_ROW * num_rows, _MAX_EDGES)


def items_of_heads(num_kv_heads: int, edges: Edges, shape: tuple[int, int]) -> np.ndarray:
    """Divide the heads of keys into work items ``[num_items, 2]``, the first head and the end."""
    # One thread computes an item, so the gradients of a key are summed in the order of edges.
    num_items = min(worthwhile_parts(edges, shape, GRAIN), num_kv_heads)
    ends = [num_kv_heads * item // num_items for item in range(num_items + 1)]
    return np.array(list(pairwise(ends)), np.int64)


_EDGES_OF_A_ROW, _MAX_EDGES = 16, 1 << 14


# Loops ###############################################################################


@in_threads
def attend_to_few(items, progress, query, key, value, queries_per_key, terms, out, max_inv_sum,
                  edges):
    """Loop: write the output, the maximum logit m and 1 over the sum of ``exp(logit - m)``."""
    # items: of items_of_heads; query to out, max_inv_sum: [nodes * heads, channels]
    indptr, heads = edges.indptr, terms.num_heads
    space = max(max_row_length(indptr), _TILE + LANES)
    weight = np.empty(space, query.dtype)
    own_row, key_row = np.empty(space, np.int64), np.empty(space, np.int64)
    num_rows, bottom = len(indptr) - 1, query.dtype.type(-np.inf)
    item = next_item(progress, 0)
    while item < len(items):
        begin, end = 0, _end_of_tile(indptr, 0)
        while begin < num_rows:
            first, n = indptr[begin], indptr[end] - indptr[begin]
            for head in range(items[item, 0] * queries_per_key, items[item, 1] * queries_per_key):
                _put_rows(own_row, key_row, edges, begin, end, head, heads, queries_per_key)
                _dots(weight, query, own_row, key, key_row, n)
                modify(weight, terms, first, n, head)
                for i in range(begin, end):
                    low, up, row_max = indptr[i] - first, indptr[i + 1] - first, bottom
                    for e in range(low, up):
                        row_max = weight[e] if weight[e] > row_max else row_max
                    max_inv_sum[i * heads + head, 0] = row_max
                    shift = row_max if row_max > bottom else 0  # avoids -inf - -inf
                    for e in range(low, up):
                        weight[e] -= shift
                for e in range(whole_vectors(n)):
                    weight[e] = exp(weight[e])
                for i in range(begin, end):
                    row, row_sum = i * heads + head, query.dtype.type(0)
                    for e in range(indptr[i] - first, indptr[i + 1] - first):
                        row_sum += weight[e]
                    put_max_inv_sum(max_inv_sum, row, max_inv_sum[row, 0], row_sum)
                drop_out(weight, terms, first, n, head)
                for i in range(begin, end):
                    row = i * heads + head
                    _put_sum(out, row, weight, value, key_row, indptr[i] - first,
                             indptr[i + 1] - first, max_inv_sum[row, 1])
            begin, end = end, _end_of_tile(indptr, end)
        item = next_item(progress, 0)


@in_threads
def attend_to_few_backward(
        items, progress, query, key, value, grad_out, out, max_inv_sum, queries_per_key, terms,
        grad_query, grad_key, grad_value, grad_bias, grad_gate, edges):
    """Loop: write the gradients of queries, keys, values, bias and gate."""
    # grad_bias, grad_gate: [num_edges, heads], or empty if not needed
    indptr, heads = edges.indptr, terms.num_heads
    space = max(max_row_length(indptr), _TILE + LANES)
    dot, weight, grad = (np.empty(space, query.dtype), np.empty(space, query.dtype),
                         np.empty(space, query.dtype))
    row_max, inv_sum, delta = (np.empty(space, query.dtype), np.empty(space, query.dtype),
                               np.empty(space, query.dtype))
    kept = np.ones(space, query.dtype)
    own_row, key_row = np.empty(space, np.int64), np.empty(space, np.int64)
    num_rows, num_kv_heads = len(indptr) - 1, heads // queries_per_key
    item = next_item(progress, 0)
    while item < len(items):
        for row in range(0, len(grad_key), num_kv_heads):
            for head in range(items[item, 0], items[item, 1]):
                clear_row(grad_key, row + head)
                clear_row(grad_value, row + head)
        begin, end = 0, _end_of_tile(indptr, 0)
        while begin < num_rows:
            first, n = indptr[begin], indptr[end] - indptr[begin]
            for head in range(items[item, 0] * queries_per_key, items[item, 1] * queries_per_key):
                _put_rows(own_row, key_row, edges, begin, end, head, heads, queries_per_key)
                _dots(dot, query, own_row, key, key_row, n)
                _dots(grad, grad_out, own_row, value, key_row, n)
                for i in range(begin, end):
                    row = i * heads + head
                    own_delta = dot_of_rows(grad_out, out, row)
                    for e in range(indptr[i] - first, indptr[i + 1] - first):
                        row_max[e], inv_sum[e] = max_inv_sum[row, 0], max_inv_sum[row, 1]
                        delta[e] = own_delta
                for e in range(whole_vectors(n)):
                    weight[e] = dot[e]
                modify(weight, terms, first, n, head)
                if terms.threshold > 0:
                    for e in range(n):
                        kept[e] = keep(terms, first + e, head)
                for e in range(whole_vectors(n)):
                    weight[e] = exp(weight[e] - row_max[e]) * inv_sum[e]
                for e in range(whole_vectors(n)):
                    grad[e] = weight[e] * (grad[e] * kept[e] - delta[e])
                    weight[e] *= kept[e]
                modify_backward(grad, dot, terms, grad_bias, grad_gate, first, n, head)
                for i in range(begin, end):
                    _put_sum(grad_query, i * heads + head, grad, key, key_row, indptr[i] - first,
                             indptr[i + 1] - first, query.dtype.type(1))
                for e in range(n):
                    add_row(grad_key, key_row[e], grad[e], query, own_row[e])
                    add_row(grad_value, key_row[e], weight[e], grad_out, own_row[e])
            begin, end = end, _end_of_tile(indptr, end)
        item = next_item(progress, 0)


_TILE = 64  # edges processed together; a longer row is processed alone


@jit_inline
def _end_of_tile(indptr, begin):
    # at most 64 edges, or a single longer row
    end = begin + 1
    while end < len(indptr) - 1 and indptr[end + 1] - indptr[begin] <= _TILE:
        end += 1
    return end


@jit_inline
def _put_rows(own_row, key_row, edges, begin, end, head, heads, queries_per_key):
    indptr, first = edges.indptr, edges.indptr[begin]
    num_kv_heads, key_head = heads // queries_per_key, head // queries_per_key
    for i in range(begin, end):
        for e in range(indptr[i], indptr[i + 1]):
            own_row[e - first] = i * heads + head
            key_row[e - first] = np.int64(edges.column[e]) * num_kv_heads + key_head
    n = indptr[end] - first
    # _dots computes four edges at a time
    for e in range(n, (n + 3) // 4 * 4):
        own_row[e], key_row[e] = own_row[n - 1], key_row[n - 1]


@jit_inline
def _dots(dot, x, x_row, y, y_row, n):
    width = x.shape[1]
    whole = width // LANES * LANES
    some = first_lanes(width - whole)
    for e in range(0, n, 4):
        x0, x1, x2, x3 = (x_row[e] * width, x_row[e + 1] * width, x_row[e + 2] * width,
                          x_row[e + 3] * width)
        y0, y1, y2, y3 = (y_row[e] * width, y_row[e + 1] * width, y_row[e + 2] * width,
                          y_row[e + 3] * width)
        sum0 = sum1 = sum2 = sum3 = splat(x.dtype.type(0))
        for c in range(0, whole, LANES):
            sum0 = multiply_add(load(x, x0 + c), load(y, y0 + c), sum0)
            sum1 = multiply_add(load(x, x1 + c), load(y, y1 + c), sum1)
            sum2 = multiply_add(load(x, x2 + c), load(y, y2 + c), sum2)
            sum3 = multiply_add(load(x, x3 + c), load(y, y3 + c), sum3)
        for _ in range(whole, width, LANES):
            x0, x1, x2, x3 = x0 + whole, x1 + whole, x2 + whole, x3 + whole
            y0, y1, y2, y3 = y0 + whole, y1 + whole, y2 + whole, y3 + whole
            sum0 = multiply_add(load_some(x, x0, some), load_some(y, y0, some), sum0)
            sum1 = multiply_add(load_some(x, x1, some), load_some(y, y1, some), sum1)
            sum2 = multiply_add(load_some(x, x2, some), load_some(y, y2, some), sum2)
            sum3 = multiply_add(load_some(x, x3, some), load_some(y, y3, some), sum3)
        store(dot, e, sum_lanes_of_each(sum0, sum1, sum2, sum3))


@jit_inline
def _put_sum(out, row, weight, y, y_row, first, last, factor):
    width = out.shape[1]
    whole, zero = width // LANES * LANES, y.dtype.type(0)
    for c in range(0, whole, LANES):
        one = splat(zero)
        for e in range(first, last):
            one = multiply_add(splat(weight[e]), load(y, y_row[e] * width + c), one)
        store(out, row * width + c, multiply(splat(factor), one))
    for c in range(whole, width, LANES):
        one, some = splat(zero), first_lanes(width - c)
        for e in range(first, last):
            one = multiply_add(splat(weight[e]), load_some(y, y_row[e] * width + c, some), one)
        store_some(out, row * width + c, multiply(splat(factor), one), some)
