"""Attention in one pass over the edges of each query, in loops for CPUs.

A buffer contains the logits of one query. The backward pass recomputes weights from the row maximum
and the inverse sum, so neither weights nor tensors of size edges x channels are stored.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from graphattn.ops.attention.cpu_few_edges import (
    attend_to_few,
    attend_to_few_backward,
    has_few_edges,
    items_of_heads,
)
from graphattn.ops.attention.cpu_tiles import (
    MOST,
    MOST_BACKWARD,
    attend_in_tiles,
    attend_in_tiles_backward,
    split_by_tiles,
)
from graphattn.ops.attention.schema import grad_of_sink
from graphattn.ops.cpu.chunks import (
    AHEAD,
    KeyGrads,
    aligned,
    clear,
    exceeds_cache,
    first_from,
    gather,
    keys_per_chunk,
    max_chunk,
    odd_lines,
    prefetch_keys,
    put,
)
from graphattn.ops.cpu.gathered import add_products, add_weighted, dots, scatter
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.rows import (
    add_row,
    clear_row,
    consecutive,
    dot_of_rows,
    edge_rows,
    multiply_row,
    new_rows,
    node_rows,
    prefetch_row,
)
from graphattn.ops.cpu.schedule import (
    ITEMS_WITH_CHUNKS,
    Edges,
    cut,
    max_row_length,
    max_rows,
    next_item,
    run,
)
from graphattn.ops.cpu.simd import exp
from graphattn.ops.cpu.softmax import (
    Terms,
    differentiate,
    drop_out,
    exponentials,
    modify,
    put_max_inv_sum,
)
from graphattn.ops.edge_math import take_sink
from graphattn.ops.registration import accumulation_dtype, implement, sum_to


@implement('edge_attention', 'cpu')
def edge_attention_cpu(given) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, edge_attr = given.query, given.key, given.value, given.edge_attr
    dtype, (num_queries, heads, channels) = accumulation_dtype(query), query.shape
    size = 0 if edge_attr is None else edge_attr.size(1)
    out, features, max_inv_sum = (new_rows(num_queries, heads, width, dtype=dtype)
                                  for width in (value.size(2), size, 2))
    terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p, dtype,
                     slice(0, heads), heads, given.softcap)
    edges = Edges.by_query(given)
    shape = heads, channels + value.size(2) + 2 * size
    *nodes, out_rows, sum_rows = node_rows(dtype, query, key, value, out, max_inv_sum)
    if edge_attr is None and has_few_edges(edges):
        run(attend_to_few, edges, shape, *nodes, heads // key.size(1), terms, out_rows, sum_rows,
            items=items_of_heads(key.size(1), edges, shape))
        take_sink(given.sink, max_inv_sum, out)
        return out, features, max_inv_sum
    items, feature_query = cut(edges, shape, ITEMS_WITH_CHUNKS), given.feature_query
    if edge_attr is None:
        feature_query, edge_attr = features, new_rows(len(edges.column), 0, dtype=dtype)
        items, tiled = split_by_tiles(items, edges, shape, MOST)
        if len(tiled) > 0:
            run(attend_in_tiles, edges, shape, *nodes, heads // key.size(1), terms, out_rows,
                sum_rows, items=tiled)
    if len(items) > 0:
        feature_nodes = node_rows(dtype, feature_query, features)
        run(_attend, edges, shape, *nodes, feature_nodes[0], edge_rows(edge_attr, dtype),
            heads // key.size(1), terms, out_rows, feature_nodes[1], sum_rows, items=items)
    take_sink(given.sink, max_inv_sum, out, features)
    return out, features, max_inv_sum


@implement('edge_attention_backward', 'cpu')
def edge_attention_backward_cpu(given) -> tuple[Tensor | None, ...]:
    query, key, value, edge_attr = given.query, given.key, given.value, given.edge_attr
    features, max_inv_sum = given.features, given.max_inv_sum
    dtype, heads, num_edges = max_inv_sum.dtype, query.size(1), given.edge_key.numel()
    terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p, dtype,
                     slice(0, heads), heads, given.softcap)
    edges = Edges.by_query(given)
    grad_query = new_rows(*query.shape, dtype=dtype)
    grad_bias, grad_gate = (new_rows(num_edges if needed else 0, heads, dtype=dtype)
                            for needed in (given.needs_bias, given.needs_gate))
    shape = heads, query.size(2) + value.size(2) + 2 * features.size(2)
    nodes = node_rows(dtype, query, key, value, given.grad_out, given.out, max_inv_sum)
    grad_feature_query = grad_attr = None
    if edge_attr is None and has_few_edges(edges):
        key_sums = [new_rows(*x.shape, dtype=dtype) for x in (key, value)]
        run(attend_to_few_backward, edges, shape, *nodes, heads // key.size(1), terms,
            *node_rows(dtype, grad_query, *key_sums), grad_bias, grad_gate,
            items=items_of_heads(key.size(1), edges, shape))
    else:
        key_grads = KeyGrads.of(edges, shape, [key, value], dtype)
        items, feature_query, grad_features = (key_grads.items, given.feature_query,
                                               given.grad_features)
        if edge_attr is None:
            feature_query = grad_features = features
            edge_attr = new_rows(num_edges, 0, dtype=dtype)
            items, tiled = split_by_tiles(items, edges, shape, MOST_BACKWARD)
            if len(tiled) > 0:
                run(attend_in_tiles_backward, edges, shape, *nodes, key_grads.queries_per_key,
                    terms, *node_rows(dtype, grad_query), grad_bias, grad_gate,
                    *key_grads.targets(), items=tiled)
        needs_attr = given.needs_edge_attr
        grad_feature_query = new_rows(*feature_query.shape, dtype=dtype)
        grad_dot, weight = (new_rows(num_edges if needs_attr else 0, heads, dtype=dtype)
                            for _ in range(2))
        feature_nodes = node_rows(dtype, feature_query, grad_features, features)
        if len(items) > 0:
            run(_attend_backward, edges, shape, *nodes, *feature_nodes, edge_rows(edge_attr, dtype),
                key_grads.queries_per_key, terms,
                *node_rows(dtype, grad_query, grad_feature_query), grad_bias, grad_gate, grad_dot,
                weight, *key_grads.targets(), items=items)
        if needs_attr:
            grad_attr = new_rows(*edge_attr.shape, dtype=dtype)
            run(_attr_backward, edges, (1, 2 * heads * edge_attr.size(1)), grad_dot, weight,
                *feature_nodes[:2], grad_attr)
        key_sums = key_grads.sums()
    grads = grad_query, *key_sums, grad_feature_query, grad_attr
    return (*(grad if grad is None else grad.to(query.dtype) for grad in grads),
            sum_to(grad_bias, given.bias), sum_to(grad_gate, given.gate), grad_of_sink(given))


# Loops ###############################################################################

# The keys of a segment are processed in chunks that fit in the cache, because the keys of a query
# may lie anywhere in the segment.


@in_threads
def _attend(items, progress, query, key, value, feature_query, attr, queries_per_key, terms, out,
            features, max_inv_sum, edges):
    # query to feature_query, out to max_inv_sum: [nodes * heads, channels]; attr: [num_edges,
    # size], of size 0 if there are none; max_inv_sum: the maximum logit m and 1 over the sum of
    # exp(logit - m) of each query
    indptr, edge_key, key_ptr, heads = edges.indptr, edges.column, edges.column_ptr, terms.num_heads
    longest, num_rows = max_row_length(indptr), max_rows(items)
    weight, position = np.empty(longest, query.dtype), np.empty(num_rows, np.int64)
    num_features, num_kv_heads = attr.shape[1], heads // queries_per_key
    attr_dot = np.empty(longest if num_features > 0 else 0, query.dtype)
    own_edge = consecutive(len(attr_dot), edge_key)
    row_max, row_sum = np.empty(num_rows, query.dtype), np.empty(num_rows, query.dtype)
    channels = key.shape[1] + value.shape[1]
    max_keys = max_chunk(items, channels, edges)
    own, to_value = aligned(max_keys, channels, key), key.shape[1]
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end, segment = items[item, 0], items[item, 1], items[item, 2], items[item, 3]
        first_key, last_key = key_ptr[segment], key_ptr[segment + 1]
        chunk = keys_per_chunk(channels, edges, segment)
        for r in range(end - begin):
            position[r], row_max[r], row_sum[r] = indptr[begin + r], -np.inf, 0
        # The softmax of a query is rescaled if a later chunk has a larger logit.
        for low in range(first_key, max(last_key, first_key + 1), chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * channels
            is_scattered = exceeds_cache(rows)
            gather(rows, 0, key, low, head // queries_per_key, num_kv_heads)
            gather(rows, to_value, value, low, head // queries_per_key, num_kv_heads)
            for i in range(begin, end):
                row, r, first = i * heads + head, i - begin, position[i - begin]
                for x in (query, out):
                    prefetch_row(x, row + AHEAD * heads)
                if is_scattered and i + 1 < end:
                    prefetch_keys(rows, low, edge_key, position[r + 1], indptr[i + 2])
                if low == first_key:
                    clear_row(out, row)
                    clear_row(features, row)
                position[r] = first_from(up, last_key, edge_key, first, indptr[i + 1])
                n = position[r] - first
                if n > 0:
                    row_key = edge_key[first:]
                    dots(weight, query, row, rows, origin, row_key, n)
                    if num_features > 0:
                        dots(attr_dot, feature_query, row, attr, first * num_features, own_edge, n)
                        for e in range(n):
                            weight[e] += attr_dot[e]
                    modify(weight, terms, first, n, head)
                    new_max, added = exponentials(weight, n, row_max[r])
                    if low > first_key and new_max > row_max[r]:
                        rescale = exp(row_max[r] - new_max)
                        row_sum[r] *= rescale
                        multiply_row(out, row, rescale)
                        multiply_row(features, row, rescale)
                    row_max[r] = new_max
                    row_sum[r] += added
                    drop_out(weight, terms, first, n, head)
                    add_weighted(out, row, weight, rows, origin + to_value, row_key, n)
                    if num_features > 0:
                        add_weighted(features, row, weight, attr, first * num_features, own_edge,
                                     n)
                if up == last_key:
                    put_max_inv_sum(max_inv_sum, row, row_max[r], row_sum[r])
                    if row_sum[r] != 0:
                        multiply_row(out, row, max_inv_sum[row, 1])
                        multiply_row(features, row, max_inv_sum[row, 1])
        item = next_item(progress, 0)


@in_threads
def _attend_backward(
        items, progress, query, key, value, grad_out, out, max_inv_sum, feature_query,
        grad_features, features, attr, queries_per_key, terms, grad_query, grad_feature_query,
        grad_bias, grad_gate, grad_attr_dot, attr_weight, grad_key, grad_value, shared_grad_key,
        shared_grad_value, edges):
    # grad_bias, grad_gate, grad_attr_dot, attr_weight: [num_edges, heads], or empty if not needed;
    # the last two are for _attr_backward, the last four before edges are the targets of KeyGrads
    indptr, edge_key, key_ptr, heads = edges.indptr, edges.column, edges.column_ptr, terms.num_heads
    dot, weight = np.empty(_TILE, query.dtype), np.empty(_TILE, query.dtype)
    grad_weight, kept = np.empty(_TILE, query.dtype), np.ones(_TILE, query.dtype)
    num_features, num_kv_heads = attr.shape[1], heads // queries_per_key
    attr_dot, own_edge = np.empty(_TILE, query.dtype), consecutive(_TILE, edge_key)
    num_rows = max_rows(items)
    position, deltas = np.empty(num_rows, np.int64), np.empty(num_rows, query.dtype)
    channels = 2 * key.shape[1] + 2 * value.shape[1]
    stride = odd_lines(channels, key)
    max_keys = max_chunk(items, stride, edges)
    own, to_value, to_grad = aligned(max_keys, stride, key), key.shape[1], channels // 2
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
            is_scattered = exceeds_cache(rows)
            gather(rows, 0, key, low, head // queries_per_key, num_kv_heads)
            gather(rows, to_value, value, low, head // queries_per_key, num_kv_heads)
            clear(rows, to_grad)
            for i in range(begin, end):
                row, r, begin_edge = i * heads + head, i - begin, position[i - begin]
                for x in (query, grad_out, grad_query):
                    prefetch_row(x, row + AHEAD * heads)
                if is_scattered and i + 1 < end:
                    prefetch_keys(rows, low, edge_key, position[r + 1], indptr[i + 2])
                if low == first_key:
                    prefetch_row(out, row + AHEAD * heads)
                    clear_row(grad_query, row)
                    clear_row(grad_feature_query, row)
                    deltas[r] = (dot_of_rows(grad_out, out, row)
                                 + dot_of_rows(grad_features, features, row))
                position[r] = first_from(up, last_key, edge_key, begin_edge, indptr[i + 1])
                delta, row_max, inv_sum = deltas[r], max_inv_sum[row, 0], max_inv_sum[row, 1]
                for first in range(begin_edge, position[r], _TILE):
                    n = min(_TILE, position[r] - first)
                    row_key = edge_key[first:]
                    dots(dot, query, row, rows, origin, row_key, n)
                    dots(grad_weight, grad_out, row, rows, origin + to_value, row_key, n)
                    if num_features > 0:
                        at = first * num_features
                        dots(attr_dot, feature_query, row, attr, at, own_edge, n)
                        for e in range(n):
                            dot[e] += attr_dot[e]
                        dots(attr_dot, grad_features, row, attr, at, own_edge, n)
                        for e in range(n):
                            grad_weight[e] += attr_dot[e]
                    differentiate(dot, grad_weight, weight, kept, first, n, row_max, inv_sum, delta,
                                  terms, head, grad_bias, grad_gate)
                    add_products(grad_query, query, row, grad_weight, rows, origin, to_grad,
                                  row_key, n)
                    scatter(rows, origin + to_grad + to_value, weight, grad_out, row, row_key, n)
                    if num_features > 0:
                        add_weighted(grad_feature_query, row, grad_weight, attr,
                                     first * num_features, own_edge, n)
                    if grad_attr_dot.shape[0] > 0:
                        for e in range(n):
                            grad_attr_dot[first + e, head] = grad_weight[e]
                            attr_weight[first + e, head] = weight[e]
            if shared_row < 0:
                key_head = head // queries_per_key
                put(grad_key, rows, to_grad, low, key_head, num_kv_heads)
                put(grad_value, rows, to_grad + to_value, low, key_head, num_kv_heads)
            else:
                put(shared_grad_key, rows, to_grad, shared_row + low - first_key, 0, 1)
                put(shared_grad_value, rows, to_grad + to_value, shared_row + low - first_key, 0, 1)
        item = next_item(progress, 0)


@in_threads
def _attr_backward(items, progress, grad_dot, weight, feature_query, grad_features, grad_attr,
                   edges):
    indptr, heads = edges.indptr, grad_dot.shape[1]
    item = next_item(progress, 0)
    while item < len(items):
        for i in range(items[item, 1], items[item, 2]):
            for e in range(indptr[i], indptr[i + 1]):
                clear_row(grad_attr, e)
                for head in range(heads):
                    add_row(grad_attr, e, grad_dot[e, head], feature_query, i * heads + head)
                    add_row(grad_attr, e, weight[e, head], grad_features, i * heads + head)
        item = next_item(progress, 0)


_TILE = 64  # edges of a row at a time, so that their keys and gradients fit in the L1 cache
