"""Dot products, attention weights and weighted sums along the edges of each row, of a query or of a
key, in Triton."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

import graphattn.ops.weights.schema  # noqa: F401 (defines)
from graphattn.ops.registration import accumulation_dtype, implement
from graphattn.ops.triton.launch import TYPES, Tile, fp64, kernel, launch, u64
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather, put
from graphattn.ops.triton.softmax import Terms, kept, logits
from graphattn.ops.weights import triton_tiles as tiles_of_sums


@implement('edge_dot', 'cuda')
def edge_dot_cuda(given) -> Tensor:
    return dots_on_edges(given.query, given.key, given)


def dots_on_edges(query: Tensor, key: Tensor, given) -> Tensor:
    # given: arguments of an operator, among them registration.GRAPH
    dot = query.new_empty(query.size(1), given.edge_key.numel(), dtype=accumulation_dtype(query))
    dot_rows(query, key, Rows.of(given.indptr, given.edge_key, len(key)), dot)
    return dot.t().to(query.dtype).contiguous()


@implement('edge_dot_backward', 'cuda')
def edge_dot_backward_cuda(given) -> tuple[Tensor, Tensor]:
    query, key = given.query, given.key
    grad_dot = given.grad_dot.t().to(accumulation_dtype(query)).contiguous()
    sums = ((grad_dot, key, given.indptr, given.edge_key),
            (grad_dot[:, given.perm], query, given.key_indptr, given.edge_query))
    return tuple(_sum_edges(weight, x, Rows.of(*rows, len(x))) for weight, x, *rows in sums)


def _sum_edges(weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
    # over tiles where attention along the same edges has planned them
    tiles = tiles_of_sums.planned(rows, x)
    rest = rows if tiles is None else tiles.rest_of(rows)
    out = sum_rows(weight, x, rest, x.dtype, skip_zeros=True)
    if tiles is not None and tiles.have_rows:
        tiles_of_sums.sum_tiles(weight, x, tiles, rows, out)
    return out


@implement('weighted_sum', 'cuda')
def weighted_sum_cuda(given) -> Tensor:
    value = given.value
    rows = Rows.of(given.indptr, given.edge_key, len(value))
    return sum_rows(given.weight.t(), value, rows, value.dtype)


@implement('weighted_sum_backward', 'cuda')
def weighted_sum_backward_cuda(given) -> tuple[Tensor | None, Tensor | None]:
    grad, grad_weight, grad_value = given.grad_out, None, None
    if given.needs_weight:
        grad_weight = dots_on_edges(grad, given.value, given)
    if given.needs_value:
        rows = Rows.of(given.key_indptr, given.edge_query, len(grad))
        grad_value = sum_rows(given.weight.t(), grad, rows, grad.dtype, given.perm)
    return grad_weight, grad_value


def dot_rows(query: Tensor, key: Tensor, rows: Rows, dot: Tensor, *, add: bool = False) -> None:
    """Write the dot product of each edge to ``dot`` ``[heads, num_edges]``, or ``add`` it."""
    _write_rows(query, key, rows, Terms.of(None, None, None, 1., 0.), None, dot, add)


def weigh(query: Tensor, key: Tensor, rows: Rows, terms: Terms, max_inv_sum: Tensor) -> Tensor:
    """Return the attention weights after dropout, ``[heads, num_edges]``."""
    weight = query.new_empty(query.size(1), rows.num_edges, dtype=accumulation_dtype(query))
    _write_rows(query, key, rows, terms, max_inv_sum, weight, False)
    return weight


def _write_rows(query: Tensor, key: Tensor, rows: Rows, terms: Terms, max_inv_sum: Tensor | None,
                written: Tensor, add: bool) -> None:
    _, heads, channels = query.shape
    tile = Tile.of(key.dtype, rows.num_rows, rows.num_edges, channels)
    launch(weigh_rows, rows.grid(heads, tile.ROWS), *rows.pointers(), query.contiguous(),
           key.contiguous(), *terms, max_inv_sum, written, rows.num_edges, HEADS=heads,
           CHANNELS=channels, ADD=add, DTYPE=TYPES[written.dtype], ROWS=tile.ROWS,
           EDGES=tile.EDGES, WIDTH=tile.WIDTH)


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


# Kernels #############################################################################


@kernel
def weigh_rows(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, bias, gate, seed, bias_edge_stride, bias_head_stride, gate_edge_stride,
        gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, max_inv_sum, written, num_edges, HEADS: tl.constexpr,
        CHANNELS: tl.constexpr, ADD: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr,
        EDGES: tl.constexpr, WIDTH: tl.constexpr):
    """Kernel: write the attention weights of the edges of some queries in one head; without
    ``max_inv_sum``, their dot products, or ``ADD`` these."""
    # up to part: Rows.pointers; bias to SOFTCAP: Terms
    row, begin, end, _, is_task, _ = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    head = tl.program_id(1)
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_task, DTYPE)
    if max_inv_sum is not None:
        at = 2 * (row * HEADS + head)
        row_max = tl.load(max_inv_sum + at, mask=is_task, other=0)
        inv_sum = tl.load(max_inv_sum + at + 1, mask=is_task, other=0)
    of_head = written + head.to(tl.int64) * num_edges
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        j = tl.load(edge_key + edge, mask=inside, other=0)
        key_j = gather(key, j, head, HEADS, CHANNELS, WIDTH, inside, DTYPE)
        found = tl.sum(query_i[:, None, :] * key_j, axis=2)
        if max_inv_sum is not None:
            logit = logits(found, bias, gate, bias_edge_stride, bias_head_stride, gate_edge_stride,
                           gate_head_stride, scale, edge, inside, head, SOFTCAP, DTYPE)
            found = tl.exp(logit - row_max[:, None]) * inv_sum[:, None]
            if seed is not None:
                found *= kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
        if ADD:
            found += tl.load(of_head + edge, mask=inside, other=0)
        tl.store(of_head + edge, found, mask=inside)


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
