"""Features of edges in the Triton kernels of attention, and the gradients that depend on them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.registration import accumulation_dtype
from graphattn.ops.triton.launch import TYPES, Tile, kernel, launch
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather
from graphattn.ops.triton.softmax import place
from graphattn.ops.weights.triton_rows import sum_rows


class FeatureSums(NamedTuple):
    """Features of edges, and tensors for their weighted sums; None without features."""

    query: Tensor | None = None  # feature_query of the operator, [num_queries, heads, size]
    attr: Tensor | None = None  # the features, [num_edges, size]
    sums: Tensor | None = None  # their weighted sums, [num_queries, heads, size]
    parts: Tensor | None = None  # workspace for the parts of long rows

    @classmethod
    def of(cls, query: Tensor | None, attr: Tensor | None, rows: Rows) -> FeatureSums:
        if attr is None:
            return cls()
        (num_queries, heads, size), dtype = query.shape, accumulation_dtype(query)
        return cls(query.contiguous(), attr.contiguous(),
                   query.new_empty(num_queries, heads, size, dtype=dtype),
                   rows.tasks.parts(heads, size + 2, dtype))


NO_FEATURES = FeatureSums()


class FeatureGrads(NamedTuple):
    """Features of edges for kernels of the backward pass, and tensors for results; None without."""

    query: Tensor | None = None  # query, attr and sums as in FeatureSums
    attr: Tensor | None = None
    sums: Tensor | None = None
    grad_sums: Tensor | None = None  # gradients of the sums
    grad_query: Tensor | None = None  # result: gradients of ``query``
    parts: Tensor | None = None  # workspace for the parts of long rows
    grad_dot: Tensor | None = None  # result: gradients of dot products, [heads, num_edges]
    weight: Tensor | None = None  # result: weights after dropout, [heads, num_edges]

    @classmethod
    def of(cls, given, rows: Rows) -> FeatureGrads:
        # given: arguments of edge_attention_backward
        query, attr, sums = given.feature_query, given.edge_attr, given.features
        if attr is None:
            return cls()
        _, heads, size = query.shape
        on_edges = (sums.new_empty(heads, rows.num_edges) for _ in range(2))
        # The cast of grad_sums loses nothing: the sums were cast to this dtype, so their gradients
        # were rounded.
        return cls(query.contiguous(), attr.contiguous(), sums.contiguous(),
                   given.grad_features.to(query.dtype).contiguous(),
                   torch.empty_like(query, memory_format=torch.contiguous_format),
                   rows.tasks.parts(heads, size, sums.dtype), *on_edges)


def grads_of_keys(features: FeatureGrads, query: Tensor, grad_out: Tensor, rows: Rows,
                  perm: Tensor, num_kv_heads: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys and values, from the results of the kernel over queries."""
    # rows: by key; perm: the place of their edges in the order by query
    heads, dtype = query.size(1), query.dtype
    sharing = heads // num_kv_heads
    summed = dtype if sharing == 1 else features.sums.dtype
    grads = (sum_rows(on_edges, x, rows, summed, perm)
             for on_edges, x in ((features.grad_dot, query), (features.weight, grad_out)))
    if sharing == 1:
        return tuple(grads)
    return tuple(grad.unflatten(1, (num_kv_heads, sharing)).sum(2).to(dtype) for grad in grads)


def grad_of_attr(features: FeatureGrads, rows: Rows) -> Tensor:
    """Return the gradients of the features of edges, ``[num_edges, size]``."""
    # from the results of the kernel over queries; rows: by query
    (_, heads, size), dtype = features.query.shape, features.attr.dtype
    grad_attr = torch.empty_like(features.attr)
    tile = Tile.of(dtype, rows.num_rows, rows.num_edges, size)
    launch(grads_of_features, (triton.cdiv(rows.tasks.number, tile.ROWS),), *rows.pointers(),
           features.query, features.grad_sums, features.grad_dot, features.weight, grad_attr,
           rows.num_edges, HEADS=heads, FEATURES=size, DTYPE=TYPES[features.sums.dtype],
           ROWS=tile.ROWS, EDGES=tile.EDGES, FEATURE_WIDTH=tile.WIDTH)
    return grad_attr


@kernel
def grads_of_features(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        feature_query, grad_features, grad_dot, weight, grad_attr, num_edges,
        HEADS: tl.constexpr, FEATURES: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr,
        EDGES: tl.constexpr, FEATURE_WIDTH: tl.constexpr):
    """Kernel: write the gradients of features of the edges of some queries, over all heads."""
    row, begin, end, slot, is_task, is_part = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    feature = tl.arange(0, FEATURE_WIDTH)
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        sums = tl.zeros([ROWS, EDGES, FEATURE_WIDTH], DTYPE)
        for head in range(0, HEADS):
            query_i = gather(feature_query, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_task,
                             DTYPE)
            grad_i = gather(grad_features, row, head, HEADS, FEATURES, FEATURE_WIDTH, is_task,
                            DTYPE)
            at = place(1, num_edges, edge, head)
            grad_dot_e = tl.load(grad_dot + at, mask=inside, other=0)
            weight_e = tl.load(weight + at, mask=inside, other=0)
            sums += grad_dot_e[:, :, None] * query_i[:, None, :]
            sums += weight_e[:, :, None] * grad_i[:, None, :]
        tl.store(grad_attr + edge[:, :, None] * FEATURES + feature[None, None, :],
                 sums.to(grad_attr.dtype.element_ty),
                 mask=inside[:, :, None] & (feature < FEATURES)[None, None, :])
