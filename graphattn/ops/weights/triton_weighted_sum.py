"""Weighted sums over the edges of each row, of a query or of a key, in Triton."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from graphattn.ops.registration import accumulation_dtype
from graphattn.ops.triton.launch import TYPES, Tile, kernel, launch
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather, put


@torch.library.register_kernel('graphattn::weighted_sum', 'cuda')
def weighted_sum_cuda(
    weight: Tensor, value: Tensor, indptr: Tensor, edge_key: Tensor, key_indptr: Tensor,
    edge_query: Tensor, perm: Tensor, query_ptr: Tensor, key_ptr: Tensor,
) -> Tensor:
    return sum_rows(weight, value, Rows.of(indptr, edge_key, len(value)), value.dtype)


@torch.library.register_kernel('graphattn::sum_to_keys', 'cuda')
def sum_to_keys_cuda(
    weight: Tensor, at_query: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
) -> Tensor:
    rows = Rows.of(key_indptr, edge_query, len(at_query))
    return sum_rows(weight, at_query, rows, at_query.dtype, perm)


def sum_rows(weight: Tensor, x: Tensor, rows: Rows, dtype: torch.dtype,
             perm: Tensor | None = None, *, skip_zeros: bool = False) -> Tensor:
    """Return the weighted sum of ``x`` over the edges of each row, ``[num_rows, heads,
    channels]``."""
    # weight: [heads, num_edges], at perm if given; skip_zeros: a weight of 0 adds nothing even if x
    # is infinite or NaN
    (_, heads, channels), summed = x.shape, accumulation_dtype(x)
    out = x.new_empty(rows.num_rows, heads, channels, dtype=dtype)
    parts = rows.tasks.parts(heads, channels, summed)
    tile = Tile.of(x.dtype, rows.num_rows, rows.num_edges, channels)
    launch(sum_of_rows, rows.grid(heads, tile.ROWS), *rows.pointers(), perm, weight.contiguous(),
           x.contiguous(), out, parts, parts.size(1), rows.num_edges, HEADS=heads,
           CHANNELS=channels, SKIP_ZEROS=skip_zeros, DTYPE=TYPES[summed], ROWS=tile.ROWS,
           EDGES=tile.EDGES, WIDTH=tile.WIDTH)
    rows.add(parts, out)
    return out


@kernel
def sum_of_rows(
        indptr, column, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        perm, weight, x, out, parts, num_parts, num_edges, HEADS: tl.constexpr,
        CHANNELS: tl.constexpr, SKIP_ZEROS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr,
        EDGES: tl.constexpr, WIDTH: tl.constexpr):
    """Kernel: write the weighted sums of ``x`` over the edges of some rows in one head."""
    # up to part: Rows.pointers; parts of long rows go to ``parts``
    row, begin, end, slot, is_task, is_part = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    head = tl.program_id(1)
    of_head = weight + head.to(tl.int64) * num_edges
    sums = tl.zeros([ROWS, WIDTH], DTYPE)
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        j = tl.load(column + edge, mask=inside, other=0)
        at = edge
        if perm is not None:
            at = tl.load(perm + edge, mask=inside, other=0).to(tl.int64)
        weight_j = tl.load(of_head + at, mask=inside, other=0).to(DTYPE)
        if SKIP_ZEROS:
            inside &= weight_j != 0
        x_j = gather(x, j, head, HEADS, CHANNELS, WIDTH, inside, DTYPE)
        sums += tl.sum(weight_j[:, :, None] * x_j, axis=1)
    put(out, row, head, HEADS, CHANNELS, WIDTH, is_task & (is_part == 0), sums)
    put(parts, head * num_parts + slot, 0, 1, CHANNELS, WIDTH, is_part, sums)
