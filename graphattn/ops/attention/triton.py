"""Attention in Triton, in one pass over the edges of each query, without stored weights.

One program computes each sum, without atomic additions, so results are deterministic. In kernels, i
is a query, j a key, and ``delta`` the sum over a query's edges of weight times its gradient.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import KernelInterface

from graphattn.ops.attention import triton_features as with_features
from graphattn.ops.attention import triton_short_rows as short_rows
from graphattn.ops.attention import triton_tiles as attention_tiles
from graphattn.ops.attention.schema import grad_of_sink
from graphattn.ops.attention.triton_features import NO_FEATURES, FeatureGrads, FeatureSums
from graphattn.ops.attention.triton_short_rows import (
    attend_short_rows,
    grads_of_short_keys,
    grads_of_short_queries,
)
from graphattn.ops.edge_math import take_sink
from graphattn.ops.registration import accumulation_dtype, implement, sum_to
from graphattn.ops.triton.launch import TYPES, Tile, fp64, kernel, launch, u64, width_of
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather, put
from graphattn.ops.triton.softmax import (
    Terms,
    before_softcap,
    gates,
    join,
    kept,
    logits,
    place,
    put_max_inv_sum,
    put_part,
)


@implement('edge_attention', 'cuda')
def edge_attention_cuda(given) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = given.query, given.key, given.value
    terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p,
                     given.softcap)
    rows = Rows.of(given.indptr, given.edge_key, len(key))
    features = FeatureSums.of(given.feature_query, given.edge_attr, rows)
    tiles = None if given.edge_attr is not None else attention_tiles.plan(
        given.indptr, given.edge_key, len(key), query.size(1),
        max(query.size(2), value.size(2)), query.dtype, terms)
    out, max_inv_sum = attend(query, key, value, rows, terms, tiles, features)
    sums = out.new_empty(*query.shape[:2], 0) if features.sums is None else features.sums
    take_sink(given.sink, max_inv_sum, out, sums)
    return out, sums, max_inv_sum


def attend(query: Tensor, key: Tensor, value: Tensor, rows: Rows, terms: Terms,
           tiles: attention_tiles.Tiles | None = None,
           features: FeatureSums = NO_FEATURES) -> tuple[Tensor, Tensor]:
    """Return ``[num_queries, heads, value_channels]``, and softmax sums ``[num_queries, heads,
    2]``."""
    # The sums are the maximum logit m, and 1 over the sum of exp(logit - m). Kernels over tiles do
    # not support features, whose weighted sums are written to features.sums.
    nodes = [x.contiguous() for x in (query, key, value)]
    (num_queries, heads, _), dtype = query.shape, accumulation_dtype(query)
    out = query.new_empty(num_queries, heads, value.size(2), dtype=dtype)
    max_inv_sum = query.new_empty(num_queries, heads, 2, dtype=dtype)
    if tiles is None or tiles.leave_rows:
        rows = rows if tiles is None else tiles.rest_of(rows)
        parts = rows.tasks.parts(heads, value.size(2) + 2, dtype)
        _launch_over_queries((attend_rows, attend_short_rows), rows, nodes, features.attr, *nodes,
                             *terms, out, max_inv_sum, parts, *features, parts.size(1))
        join(rows.tasks, parts, out, max_inv_sum, rows.num_tiles)
        if features.sums is not None:
            join(rows.tasks, features.parts, features.sums, max_inv_sum)
    if tiles is not None and tiles.have_rows:
        attention_tiles.attend(tiles, rows, nodes, terms, out, max_inv_sum)
    return out, max_inv_sum


def _launch_over_queries(kernels: tuple[KernelInterface, KernelInterface], rows: Rows,
                         nodes: list[Tensor], attr: Tensor | None, *arguments) -> None:
    """Launch the kernel of one head, or that of several heads of a short row."""
    # attr: features of edges, or None
    query, key, value, *_ = nodes
    of_one_head, of_heads = kernels
    (_, heads, channels), value_channels = query.shape, value.size(2)
    num_features = 0 if attr is None else attr.size(1)
    sizes = dict(HEADS=heads, SHARING=heads // key.size(1), CHANNELS=channels,
                 VALUE_CHANNELS=value_channels, DTYPE=TYPES[accumulation_dtype(query)],
                 FEATURES=num_features,
                 FEATURE_WIDTH=0 if attr is None else width_of(num_features))
    if short_rows.are_faster(rows, key, value):
        short_rows.launch_kernel(of_heads, rows, nodes, *arguments, **sizes)
    else:
        tile = Tile.of(query.dtype, rows.num_rows, rows.num_edges, max(channels, num_features),
                       value_channels)._replace(WIDTH=width_of(channels))
        launch(of_one_head, rows.grid(heads, tile.ROWS), *rows.pointers(), *arguments, **sizes,
               **tile._asdict())


@implement('edge_attention_backward', 'cuda')
def edge_attention_backward_cuda(given) -> tuple[Tensor | None, ...]:
    query, key, value, max_inv_sum = given.query, given.key, given.value, given.max_inv_sum
    dtype, (num_queries, heads, channels) = max_inv_sum.dtype, query.shape
    num_edges, value_channels = given.edge_key.numel(), value.size(2)
    has_features = given.edge_attr is not None
    terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p,
                     given.softcap)
    # The cast of grad_out loses nothing: the output was cast to this dtype, so its gradient was
    # rounded.
    nodes = [x.contiguous() for x in (query, key, value, given.grad_out.to(query.dtype))]
    grad_query = torch.empty_like(nodes[0])
    softmax = None if has_features else query.new_empty(num_queries, heads, 4, dtype=dtype)
    grad_bias, grad_gate = (query.new_empty(heads, num_edges, dtype=dtype) if needed else None
                            for needed in (given.needs_bias, given.needs_gate))
    rows = Rows.of(given.indptr, given.edge_key, len(key))
    on_edges = FeatureGrads.of(given, rows)
    tiles = None if has_features else attention_tiles.plan(
        given.indptr, given.edge_key, len(key), heads, max(channels, value_channels), query.dtype,
        terms)
    stages, grads = (given.out, max_inv_sum, softmax), (grad_query, grad_bias, grad_gate)
    if tiles is None or tiles.leave_rows:
        rows = rows if tiles is None else tiles.rest_of(rows)
        parts = rows.tasks.parts(heads, channels, dtype)
        _launch_over_queries((grads_of_queries, grads_of_short_queries), rows, nodes,
                             given.edge_attr, *nodes, *terms, *stages, *grads, parts, *on_edges,
                             parts.size(1), num_edges)
        rows.add(parts, grad_query)
        if has_features:
            rows.add(on_edges.parts, on_edges.grad_query)
    if tiles is not None and tiles.have_rows:
        attention_tiles.grads_of_queries(tiles, rows, nodes, terms, stages, grads)
    grad_attr = with_features.grad_of_attr(on_edges, rows) if given.needs_edge_attr else None

    rows = Rows.of(given.key_indptr, given.edge_query, num_queries)
    grad_key, grad_value = grads_of_nodes(nodes, rows, given.perm, terms, softmax, on_edges)
    grads_on_edges = (None if grad is None else sum_to(grad.t(), values).contiguous()
                      for grad, values in ((grad_bias, given.bias), (grad_gate, given.gate)))
    return (grad_query, grad_key, grad_value, on_edges.grad_query, grad_attr, *grads_on_edges,
            grad_of_sink(given))


def grads_of_nodes(nodes: list[Tensor], rows: Rows, perm: Tensor, terms: Terms,
                   softmax: Tensor | None, features: FeatureGrads) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys and values."""
    # rows: by key; perm: the place of their edges in the order by query; softmax: the 3 numbers
    # that grads_of_queries writes, [num_queries, heads, 4], or None if edges have features
    query, key, value, grad_out = nodes
    (num_queries, heads, channels), (*_, num_kv_heads, value_channels) = query.shape, value.shape
    are_short, dtype = short_rows.are_faster(rows, key, value), accumulation_dtype(query)
    if softmax is None and not are_short:
        return with_features.grads_of_keys(features, query, grad_out, rows, perm, num_kv_heads)
    grad_key, grad_value = (torch.empty_like(x) for x in (key, value))
    tiles = None if softmax is None else attention_tiles.plan(
        rows.indptr, rows.column, num_queries, num_kv_heads, max(channels, value_channels),
        query.dtype, terms)
    if tiles is None or tiles.leave_rows:
        rows = rows if tiles is None else tiles.rest_of(rows)
        parts, value_parts = (rows.tasks.parts(num_kv_heads, size, dtype)
                              for size in (channels, value_channels))
        sizes = dict(HEADS=heads, SHARING=heads // num_kv_heads, CHANNELS=channels,
                     VALUE_CHANNELS=value_channels, DTYPE=TYPES[dtype])
        results = grad_key, grad_value, parts, value_parts, parts.size(1)
        if are_short:
            short_rows.launch_kernel(
                grads_of_short_keys, rows, nodes, perm, *nodes, *terms, softmax, features.grad_dot,
                features.weight, *results, rows.num_edges, over_queries=False, **sizes)
        else:
            tile = Tile.of(query.dtype, rows.num_rows, rows.num_edges, channels, value_channels)
            launch(grads_of_keys, rows.grid(num_kv_heads, tile.ROWS), *rows.pointers(), perm,
                   *nodes, *terms, softmax, *results, **sizes, **tile._asdict())
        rows.add(parts, grad_key)
        rows.add(value_parts, grad_value)
    if tiles is not None and tiles.have_rows:
        attention_tiles.grads_of_keys(tiles, rows, perm, nodes, terms, softmax,
                                      (grad_key, grad_value))
    return grad_key, grad_value


# Kernels #############################################################################


@kernel
def attend_rows(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, value, bias, gate, seed, bias_edge_stride, bias_head_stride, gate_edge_stride,
        gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, out, max_inv_sum, parts, feature_query, edge_attr, features,
        feature_parts, num_parts,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, FEATURES: tl.constexpr, DTYPE: tl.constexpr,
        ROWS: tl.constexpr, EDGES: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
        FEATURE_WIDTH: tl.constexpr):
    """Kernel: write the output and the softmax sums of some queries in one head."""
    # up to part: Rows.pointers; bias to SOFTCAP: Terms; feature_query to feature_parts:
    # FeatureSums. For a part of a long row, sums over it go to ``parts``. SHARING heads share a
    # head of keys.
    row, begin, end, slot, is_task, is_part = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    head = tl.program_id(1)
    key_head = head // SHARING
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_task, DTYPE)
    row_max = tl.full([ROWS], float('-inf'), DTYPE)
    row_sum = tl.zeros([ROWS], DTYPE)
    sums = tl.zeros([ROWS, VALUE_WIDTH], DTYPE)
    if edge_attr is not None:
        feature_query_i = gather(feature_query, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_task,
                                 DTYPE)
        # Three dimensions, because Triton would keep a tensor of two dimensions in one thread.
        feature_sums = tl.zeros([ROWS, 1, FEATURE_WIDTH], DTYPE)
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        j = tl.load(edge_key + edge, mask=inside, other=0)
        key_j = gather(key, j, key_head, HEADS // SHARING, CHANNELS, WIDTH, inside, DTYPE)
        dot = tl.sum(query_i[:, None, :] * key_j, axis=2)
        if edge_attr is not None:
            attr = gather(edge_attr, edge, 0, 1, FEATURES, FEATURE_WIDTH, inside, DTYPE)
            dot += tl.sum(feature_query_i[:, None, :] * attr, axis=2)
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, inside, head, SOFTCAP, DTYPE)
        new_max = tl.maximum(row_max, tl.max(logit, axis=1))
        shift = tl.where(new_max == float('-inf'), 0, new_max)  # avoids -inf - -inf
        rescale = tl.exp(row_max - shift)
        weight = tl.exp(logit - shift[:, None])
        row_sum = row_sum * rescale + tl.sum(weight, axis=1)
        if seed is not None:
            weight *= kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
        value_j = gather(value, j, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, inside,
                         DTYPE)
        sums = sums * rescale[:, None] + tl.sum(weight[:, :, None] * value_j, axis=1)
        if edge_attr is not None:
            feature_sums = (feature_sums * rescale[:, None, None]
                            + tl.sum(weight[:, :, None] * attr, axis=1, keep_dims=True))
        row_max = new_max
    is_row = is_task & (is_part == 0)
    inv_sum = tl.where(row_sum == 0, 0, 1 / row_sum)
    put(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_row, sums * inv_sum[:, None])
    put_max_inv_sum(max_inv_sum, row * HEADS + head, is_row, row_max, inv_sum)
    put_part(parts, head * num_parts + slot, is_part, sums, row_max, row_sum, VALUE_CHANNELS,
             VALUE_WIDTH)
    if edge_attr is not None:
        feature_sums = tl.reshape(feature_sums, [ROWS, FEATURE_WIDTH])
        put(features, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_row,
            feature_sums * inv_sum[:, None])
        put_part(feature_parts, head * num_parts + slot, is_part, feature_sums, row_max, row_sum,
                 FEATURES, FEATURE_WIDTH)


@kernel
def grads_of_queries(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, value, grad_out, bias, gate, seed, bias_edge_stride, bias_head_stride,
        gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, out, max_inv_sum, softmax, grad_query, grad_bias, grad_gate, parts,
        feature_query, edge_attr, features, grad_features, grad_feature_query, feature_parts,
        grad_dot_of_edges, weight_of_edges, num_parts, num_edges,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, FEATURES: tl.constexpr, DTYPE: tl.constexpr,
        ROWS: tl.constexpr, EDGES: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
        FEATURE_WIDTH: tl.constexpr):
    """Kernel: compute the gradients of some queries, and of the bias and gate of their edges."""
    # Arguments as in attend_rows; feature_query to weight_of_edges: FeatureGrads. With features,
    # weights are stored for the keys, which would else have to gather the features too; without,
    # softmax gets the maximum logit, the inverse sum and delta.
    row, begin, end, slot, is_task, is_part = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    head = tl.program_id(1)
    key_head = head // SHARING
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_task, DTYPE)
    grad_i = gather(grad_out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_task, DTYPE)
    out_i = gather(out, row, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, is_task, DTYPE)
    at = row * HEADS + head
    row_max = tl.load(max_inv_sum + 2 * at, mask=is_task, other=0)
    inv_sum = tl.load(max_inv_sum + 2 * at + 1, mask=is_task, other=0)
    delta = tl.sum(grad_i * out_i, axis=1)
    if edge_attr is not None:
        feature_query_i = gather(feature_query, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_task,
                                 DTYPE)
        grad_features_i = gather(grad_features, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_task,
                                 DTYPE)
        features_i = gather(features, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_task, DTYPE)
        delta += tl.sum(grad_features_i * features_i, axis=1)
        feature_sums = tl.zeros([ROWS, FEATURE_WIDTH], DTYPE)
    else:
        tl.store(softmax + 4 * at, row_max, mask=is_task)
        tl.store(softmax + 4 * at + 1, inv_sum, mask=is_task)
        tl.store(softmax + 4 * at + 2, delta, mask=is_task)
    sums = tl.zeros([ROWS, WIDTH], DTYPE)
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        j = tl.load(edge_key + edge, mask=inside, other=0)
        key_j = gather(key, j, key_head, HEADS // SHARING, CHANNELS, WIDTH, inside, DTYPE)
        dot = tl.sum(query_i[:, None, :] * key_j, axis=2)
        if edge_attr is not None:
            attr = gather(edge_attr, edge, 0, 1, FEATURES, FEATURE_WIDTH, inside, DTYPE)
            dot += tl.sum(feature_query_i[:, None, :] * attr, axis=2)
        logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                       gate_head_stride, scale, edge, inside, head, SOFTCAP, DTYPE)
        weight = tl.exp(logit - row_max[:, None]) * inv_sum[:, None]
        value_j = gather(value, j, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, inside,
                         DTYPE)
        grad_weight = tl.sum(grad_i[:, None, :] * value_j, axis=2)
        if edge_attr is not None:
            grad_weight += tl.sum(grad_features_i[:, None, :] * attr, axis=2)
        used = weight
        if seed is not None:
            keep = kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
            grad_weight *= keep
            used = weight * keep
        # Masked, because delta is NaN for a query without edges and with a non-finite gradient.
        grad_logit = tl.where(inside, weight * (grad_weight - delta[:, None]), 0)
        if grad_bias is not None:
            tl.store(grad_bias + head.to(tl.int64) * num_edges + edge, grad_logit, mask=inside)
        grad_dot = before_softcap(grad_logit, dot, gate, gate_edge_stride, gate_head_stride, scale,
                                  edge, inside, head, SOFTCAP, DTYPE)
        grad_dot *= tl.full((), scale, DTYPE)
        if grad_gate is not None:
            tl.store(grad_gate + head.to(tl.int64) * num_edges + edge, grad_dot * dot, mask=inside)
        if gate is not None:
            grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, inside, head, DTYPE)
        sums += tl.sum(grad_dot[:, :, None] * key_j, axis=1)
        if edge_attr is not None:
            feature_sums += tl.sum(grad_dot[:, :, None] * attr, axis=1)
            place_of_edge = place(1, num_edges, edge, head)
            tl.store(grad_dot_of_edges + place_of_edge, grad_dot, mask=inside)
            tl.store(weight_of_edges + place_of_edge, used, mask=inside)
    is_row = is_task & (is_part == 0)
    put(grad_query, row, head, HEADS, CHANNELS, WIDTH, is_row, sums)
    put(parts, head * num_parts + slot, 0, 1, CHANNELS, WIDTH, is_part, sums)
    if edge_attr is not None:
        put(grad_feature_query, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_row, feature_sums)
        put(feature_parts, head * num_parts + slot, 0, 1, FEATURES, FEATURE_WIDTH, is_part,
            feature_sums)


@kernel
def grads_of_keys(
        indptr, edge_query, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        perm,
        query, key, value, grad_out, bias, gate, seed, bias_edge_stride, bias_head_stride,
        gate_edge_stride, gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, softmax, grad_key, grad_value, parts, value_parts, num_parts,
        HEADS: tl.constexpr, SHARING: tl.constexpr, CHANNELS: tl.constexpr,
        VALUE_CHANNELS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr,
        WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Kernel: write the gradients of some keys and values in one head."""
    # Arguments as in attend_rows; perm: the place of each edge in the order by query; softmax: of
    # grads_of_queries. For a part of a long row, sums over it go to parts and value_parts.
    row, begin, end, slot, is_task, is_part = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    key_head = tl.program_id(1)
    key_j = gather(key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_task, DTYPE)
    value_j = gather(value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_task,
                     DTYPE)
    key_sums = tl.zeros([ROWS, WIDTH], DTYPE)
    value_sums = tl.zeros([ROWS, VALUE_WIDTH], DTYPE)
    longest = tl.max(end - begin, axis=0)
    for head in range(key_head * SHARING, (key_head + 1) * SHARING):
        for first in range(0, longest, EDGES):
            place = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
            inside = place < end[:, None]
            i = tl.load(edge_query + place, mask=inside, other=0)
            edge = tl.load(perm + place, mask=inside, other=0).to(tl.int64)
            query_i = gather(query, i, head, HEADS, CHANNELS, WIDTH, inside, DTYPE)
            at = (i.to(tl.int64) * HEADS + head) * 4
            row_max = tl.load(softmax + at, mask=inside, other=0)
            inv_sum = tl.load(softmax + at + 1, mask=inside, other=0)
            delta = tl.load(softmax + at + 2, mask=inside, other=0)
            dot = tl.sum(query_i * key_j[:, None, :], axis=2)
            logit = logits(dot, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                           gate_head_stride, scale, edge, inside, head, SOFTCAP, DTYPE)
            weight = tl.exp(logit - row_max) * inv_sum
            grad_i = gather(grad_out, i, head, HEADS, VALUE_CHANNELS, VALUE_WIDTH, inside, DTYPE)
            grad_weight = tl.sum(grad_i * value_j[:, None, :], axis=2)
            used = weight
            if seed is not None:
                keep = kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
                grad_weight *= keep
                used = weight * keep
            grad_logit = tl.where(inside, weight * (grad_weight - delta), 0)
            grad_dot = before_softcap(grad_logit, dot, gate, gate_edge_stride, gate_head_stride,
                                      scale, edge, inside, head, SOFTCAP, DTYPE)
            grad_dot *= tl.full((), scale, DTYPE)
            if gate is not None:
                grad_dot *= gates(gate, gate_edge_stride, gate_head_stride, edge, inside, head,
                                  DTYPE)
            key_sums += tl.sum(grad_dot[:, :, None] * query_i, axis=1)
            value_sums += tl.sum(used[:, :, None] * grad_i, axis=1)
    is_row = is_task & (is_part == 0)
    put(grad_key, row, key_head, HEADS // SHARING, CHANNELS, WIDTH, is_row, key_sums)
    put(grad_value, row, key_head, HEADS // SHARING, VALUE_CHANNELS, VALUE_WIDTH, is_row,
        value_sums)
    slot = key_head * num_parts + slot
    put(parts, slot, 0, 1, CHANNELS, WIDTH, is_part, key_sums)
    put(value_parts, slot, 0, 1, VALUE_CHANNELS, VALUE_WIDTH, is_part, value_sums)
