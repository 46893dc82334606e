"""The dot products of queries and keys on edges, in loops for CPUs, in O(num_edges) memory."""

from __future__ import annotations

import numpy as np
from torch import Tensor

import graphattn.ops.weights.schema  # noqa: F401 (defines)
from graphattn.ops.cpu.chunks import (
    AHEAD,
    KeyGrads,
    aligned,
    clear,
    first_from,
    gather,
    keys_per_chunk,
    max_chunk,
    odd_lines,
    put,
)
from graphattn.ops.cpu.gathered import add_products, dots
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.rows import clear_row, new_rows, node_rows, prefetch_row
from graphattn.ops.cpu.schedule import (
    ITEMS_WITH_CHUNKS,
    Edges,
    cut,
    max_row_length,
    max_rows,
    next_item,
    run,
)
from graphattn.ops.registration import accumulation_dtype, implement


@implement('edge_dot', 'cpu')
def edge_dot_cpu(given) -> Tensor:
    return dots_on_edges(given.query, given.key, given)


def dots_on_edges(query: Tensor, key: Tensor, given) -> Tensor:
    # given: arguments of an operator, among them registration.GRAPH
    dtype, heads = accumulation_dtype(query), query.size(1)
    edges, shape = Edges.by_query(given), (heads, query.size(2))
    dot = new_rows(len(edges.column), heads, dtype=dtype)
    run(_dot, edges, shape, *node_rows(dtype, query, key), heads, dot,
        items=cut(edges, shape, ITEMS_WITH_CHUNKS))
    return dot.to(query.dtype)


@implement('edge_dot_backward', 'cpu')
def edge_dot_backward_cpu(given) -> tuple[Tensor, Tensor]:
    query, key = given.query, given.key
    dtype, heads = accumulation_dtype(query), query.size(1)
    grad_query = new_rows(*query.shape, dtype=dtype)
    edges, shape = Edges.by_query(given), (heads, query.size(2))
    key_grads = KeyGrads.of(edges, shape, [key], dtype)
    run(_dot_backward, edges, shape, *node_rows(dtype, query, key),
        given.grad_dot.to(dtype).contiguous(), heads, *node_rows(dtype, grad_query),
        *key_grads.targets(), items=key_grads.items)
    return tuple(grad.to(query.dtype) for grad in (grad_query, *key_grads.sums()))


# Loops ###############################################################################


@in_threads
def _dot(items, progress, query, key, heads, dot, edges):
    indptr, edge_key, key_ptr = edges.indptr, edges.column, edges.column_ptr
    longest, position = max_row_length(indptr), np.empty(max_rows(items), np.int64)
    row_dot = np.empty(longest, query.dtype)
    channels = key.shape[1]
    max_keys = max_chunk(items, channels, edges)
    own = aligned(max_keys, channels, key)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end, segment = items[item, 0], items[item, 1], items[item, 2], items[item, 3]
        first_key, last_key = key_ptr[segment], key_ptr[segment + 1]
        chunk = keys_per_chunk(channels, edges, segment)
        for r in range(end - begin):
            position[r] = indptr[begin + r]
        for low in range(first_key, last_key, chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * channels
            gather(rows, 0, key, low, head, heads)
            for i in range(begin, end):
                row, r, first = i * heads + head, i - begin, position[i - begin]
                prefetch_row(query, row + AHEAD * heads)
                position[r] = first_from(up, last_key, edge_key, first, indptr[i + 1])
                n = position[r] - first
                if n > 0:
                    dots(row_dot, query, row, rows, origin, edge_key[first:], n)
                    for e in range(n):
                        dot[first + e, head] = row_dot[e]
        item = next_item(progress, 0)


@in_threads
def _dot_backward(items, progress, query, key, grad_dot, heads, grad_query, grad_key,
                  shared_grad_key, edges):
    indptr, edge_key, key_ptr = edges.indptr, edges.column, edges.column_ptr
    longest, position = max_row_length(indptr), np.empty(max_rows(items), np.int64)
    weight, weighted_key = np.empty(longest, query.dtype), np.empty(longest, edge_key.dtype)
    stride, to_grad = odd_lines(2 * key.shape[1], key), key.shape[1]
    max_keys = max_chunk(items, stride, edges)
    own = aligned(max_keys, stride, key)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        segment, shared_row = items[item, 3], items[item, 4]
        first_key, last_key = key_ptr[segment], key_ptr[segment + 1]
        chunk = keys_per_chunk(stride, edges, segment)
        for r in range(end - begin):
            position[r] = indptr[begin + r]
        for low in range(first_key, max(last_key, first_key + 1), chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * stride
            gather(rows, 0, key, low, head, heads)
            clear(rows, to_grad)
            for i in range(begin, end):
                row, r, first = i * heads + head, i - begin, position[i - begin]
                for x in (query, grad_query):
                    prefetch_row(x, row + AHEAD * heads)
                if low == first_key:
                    clear_row(grad_query, row)
                position[r] = first_from(up, last_key, edge_key, first, indptr[i + 1])
                n = 0
                # Edges with a gradient of 0 are skipped, because some estimators leave half of them
                # 0, so an infinite query or key has no effect along such an edge.
                for e in range(first, position[r]):
                    one = grad_dot[e, head]
                    weight[n], weighted_key[n] = one, edge_key[e]
                    n += one != 0
                if n > 0:
                    add_products(grad_query, query, row, weight, rows, origin, to_grad,
                                 weighted_key, n)
            if shared_row < 0:
                put(grad_key, rows, to_grad, low, head, heads)
            else:
                put(shared_grad_key, rows, to_grad, shared_row + low - first_key, 0, 1)
        item = next_item(progress, 0)
