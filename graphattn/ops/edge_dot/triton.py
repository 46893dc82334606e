"""The dot products of queries and keys on edges in Triton, in O(num_edges) memory."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from graphattn.ops.registration import accumulation_dtype
from graphattn.ops.triton.launch import TYPES, Tile, kernel, launch
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather
from graphattn.ops.weights.triton_weighted_sum import sum_rows


@torch.library.register_kernel('graphattn::edge_dot', 'cuda')
def edge_dot_cuda(
    query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor, key_indptr: Tensor,
    edge_query: Tensor, perm: Tensor, query_ptr: Tensor, key_ptr: Tensor,
) -> Tensor:
    dot = query.new_empty(query.size(1), edge_key.numel(), dtype=accumulation_dtype(query))
    dot_rows(query, key, Rows.of(indptr, edge_key, len(key)), dot)
    return dot.t().to(query.dtype).contiguous()


@torch.library.register_kernel('graphattn::edge_dot_backward', 'cuda')
def edge_dot_backward_cuda(
    grad_dot: Tensor, query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor,
    key_indptr: Tensor, edge_query: Tensor, perm: Tensor, query_ptr: Tensor, key_ptr: Tensor,
) -> tuple[Tensor, Tensor]:
    grad_dot = grad_dot.t().to(accumulation_dtype(query)).contiguous()
    sums = ((grad_dot, key, indptr, edge_key),
            (grad_dot[:, perm], query, key_indptr, edge_query))
    return tuple(sum_rows(weight, x, Rows.of(*rows, len(x)), x.dtype, skip_zeros=True)
                 for weight, x, *rows in sums)


def dot_rows(query: Tensor, key: Tensor, rows: Rows, dot: Tensor, *, add: bool = False) -> None:
    """Write the dot product of each edge to ``dot`` ``[heads, num_edges]``, or ``add`` it."""
    _, heads, channels = query.shape
    tile = Tile.of(key.dtype, rows.num_rows, rows.num_edges, channels)
    launch(dot_of_rows, rows.grid(heads, tile.ROWS), *rows.pointers(), query.contiguous(),
           key.contiguous(), dot, rows.num_edges, HEADS=heads, CHANNELS=channels, ADD=add,
           DTYPE=TYPES[dot.dtype], ROWS=tile.ROWS, EDGES=tile.EDGES, WIDTH=tile.WIDTH)


@kernel
def dot_of_rows(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, dot, num_edges, HEADS: tl.constexpr, CHANNELS: tl.constexpr, ADD: tl.constexpr,
        DTYPE: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr, WIDTH: tl.constexpr):
    """Kernel: write the dot products of some queries with the keys of their edges."""
    # up to part: Rows.pointers
    row, begin, end, _, is_task, _ = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    head = tl.program_id(1)
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_task, DTYPE)
    of_head = dot + head.to(tl.int64) * num_edges
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        j = tl.load(edge_key + edge, mask=inside, other=0)
        key_j = gather(key, j, head, HEADS, CHANNELS, WIDTH, inside, DTYPE)
        product = tl.sum(query_i[:, None, :] * key_j, axis=2)
        if ADD:
            product += tl.load(of_head + edge, mask=inside, other=0)
        tl.store(of_head + edge, product, mask=inside)
