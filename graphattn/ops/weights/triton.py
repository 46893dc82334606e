"""Attention weights of edges, and their gradients, in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.attention.triton import attend
from graphattn.ops.edge_dot.triton import dot_rows
from graphattn.ops.edge_math import grad_of_sink, take_sink
from graphattn.ops.registration import accumulation_dtype, empty_unless, sum_to
from graphattn.ops.triton.launch import TYPES, Tile, fp64, kernel, launch, u64
from graphattn.ops.triton.rows import Rows, edges_of_tasks, gather
from graphattn.ops.triton.softmax import Terms, kept, logits
from graphattn.ops.weights.triton_weighted_sum import sum_rows

_EDGES_AT_ONCE = 64  # of a program that loads only scalars of each edge, and no vectors


@torch.library.register_kernel('graphattn::attention_weights', 'cuda')
def attention_weights_cuda(
    query: Tensor, key: Tensor, bias: Tensor | None, gate: Tensor | None, sink: Tensor | None,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    scale: float, softcap: float,
) -> tuple[Tensor, Tensor]:
    rows = Rows.of(indptr, edge_key, len(key))
    terms = Terms.of(bias, gate, None, scale, 0., softcap)
    max_inv_sum = row_max_inv_sum(query, key, rows, terms, sink)
    weight = weigh(query, key, rows, terms, max_inv_sum)
    return weight, max_inv_sum.transpose(0, 1).contiguous()


@torch.library.register_kernel('graphattn::attention_weights_backward', 'cuda')
def attention_weights_backward_cuda(
    grad: Tensor, weight: Tensor, max_inv_sum: Tensor,
    query: Tensor, key: Tensor, bias: Tensor | None, gate: Tensor | None, sink: Tensor | None,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    scale: float, softcap: float, needs_bias: bool, needs_gate: bool, needs_sink: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    both = BothOrders.of(indptr, edge_key, key_indptr, edge_query, perm)
    grad_logit, delta = grads_of_logits(weight, grad, both.csr,
                                        Terms.of(None, None, None, 1., 0.))
    return (*both.grads(grad_logit, query, key, bias if needs_bias else None, gate, scale, softcap,
                        needs_gate), grad_of_sink(needs_sink, sink, max_inv_sum, delta))


class BothOrders(NamedTuple):
    """The edges of a graph sorted by query and by key, and the permutation between these."""

    csr: Rows
    csc: Rows
    perm: Tensor

    @classmethod
    def of(cls, indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor,
           perm: Tensor) -> BothOrders:
        num_queries, num_keys = indptr.numel() - 1, key_indptr.numel() - 1
        by_key = Rows.of(key_indptr, edge_query, num_queries)
        return cls(Rows.of(indptr, edge_key, num_keys), by_key, perm)

    def to_keys(self, weight: Tensor, at_query: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sums of ``at_query`` weighted by ``[heads, num_edges]`` at each key."""
        return sum_rows(weight[:, self.perm], at_query, self.csc, dtype)

    def grads(self, grad_logit: Tensor, query: Tensor, key: Tensor, bias: Tensor | None,
              gate: Tensor | None, scale: float, softcap: float,
              needs_gate: bool) -> tuple[Tensor, ...]:
        """Return the gradients of query, key, bias and gate, given those of logits."""
        # those of bias and gate are empty where not needed
        grad_gate, factor = empty_unless(False, None, query), scale
        grad_bias = (sum_to(grad_logit.t(), bias).contiguous() if bias is not None
                     else empty_unless(False, None, query))
        if gate is not None:
            factor = scale * gate.t()
        if needs_gate or softcap > 0:
            dot = torch.empty_like(grad_logit)
            dot_rows(query, key, self.csr, dot)
        if softcap > 0:
            grad_logit = grad_logit * (1 - (dot * factor / softcap).tanh().square())
        if needs_gate:
            grad_gate = sum_to((grad_logit * dot * scale).t(), gate).contiguous()
        grad_dot = grad_logit * factor
        return (sum_rows(grad_dot, key, self.csr, key.dtype),
                self.to_keys(grad_dot, query, query.dtype), grad_bias, grad_gate)


def row_max_inv_sum(query: Tensor, key: Tensor, rows: Rows, terms: Terms,
                    sink: Tensor | None) -> Tensor:
    """Return the softmax sums of each query, sink included, ``[num_queries, heads, 2]``."""
    _, max_inv_sum = attend(query, key, key[..., :0], rows, terms._replace(seed=None))
    take_sink(sink, max_inv_sum)
    return max_inv_sum


def weigh(query: Tensor, key: Tensor, rows: Rows, terms: Terms, max_inv_sum: Tensor) -> Tensor:
    """Return the attention weights after dropout, ``[heads, num_edges]``."""
    (_, heads, channels), dtype = query.shape, accumulation_dtype(query)
    weight = query.new_empty(heads, rows.num_edges, dtype=dtype)
    tile = Tile.of(query.dtype, rows.num_rows, rows.num_edges, channels)
    launch(weigh_rows, rows.grid(heads, tile.ROWS), *rows.pointers(), query.contiguous(),
           key.contiguous(), *terms, max_inv_sum, weight, rows.num_edges, HEADS=heads,
           CHANNELS=channels, DTYPE=TYPES[dtype], ROWS=tile.ROWS, EDGES=tile.EDGES,
           WIDTH=tile.WIDTH)
    return weight


def grads_of_logits(weight: Tensor, grad: Tensor, rows: Rows,
                    terms: Terms) -> tuple[Tensor, Tensor]:
    """Return gradients of logits, and for each query the sum of weight times its gradient."""
    # weight: before dropout; grad: of the weights after dropout
    heads, num_edges = weight.shape
    grad_logit = torch.empty_like(weight, memory_format=torch.contiguous_format)
    deltas = weight.new_empty(rows.num_rows, heads)
    tile = Tile.of(weight.dtype, rows.num_rows, num_edges, 1)
    at_once = _EDGES_AT_ONCE // tile.EDGES
    launch(softmax_backward, (triton.cdiv(rows.num_rows, at_once), heads), rows.indptr,
           rows.num_rows, weight.contiguous(), grad.contiguous(), terms.seed,
           terms.threshold, terms.keep_scale, grad_logit, deltas, num_edges, HEADS=heads,
           DTYPE=TYPES[weight.dtype], ROWS=at_once, EDGES=tile.EDGES)
    return grad_logit, deltas


# Kernels #############################################################################


@kernel
def weigh_rows(
        indptr, edge_key, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
        query, key, bias, gate, seed, bias_edge_stride, bias_head_stride, gate_edge_stride,
        gate_head_stride, scale: fp64, threshold: u64, keep_scale: fp64,
        SOFTCAP: tl.constexpr, max_inv_sum, weight, num_edges, HEADS: tl.constexpr,
        CHANNELS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr,
        WIDTH: tl.constexpr):
    """Kernel: write the attention weights of the edges of some queries in one head."""
    # up to part: Rows.pointers; bias to SOFTCAP: Terms
    row, begin, end, _, is_task, _ = edges_of_tasks(
        indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part, ROWS)
    head = tl.program_id(1)
    query_i = gather(query, row, head, HEADS, CHANNELS, WIDTH, is_task, DTYPE)
    row_max = tl.load(max_inv_sum + 2 * (row * HEADS + head), mask=is_task, other=0)
    inv_sum = tl.load(max_inv_sum + 2 * (row * HEADS + head) + 1, mask=is_task, other=0)
    of_head = weight + head.to(tl.int64) * num_edges
    for first in range(0, tl.max(end - begin, axis=0), EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        j = tl.load(edge_key + edge, mask=inside, other=0)
        key_j = gather(key, j, head, HEADS, CHANNELS, WIDTH, inside, DTYPE)
        logit = logits(tl.sum(query_i[:, None, :] * key_j, axis=2), bias, gate, bias_edge_stride,
                       bias_head_stride, gate_edge_stride, gate_head_stride, scale, edge, inside,
                       head, SOFTCAP, DTYPE)
        weight_j = tl.exp(logit - row_max[:, None]) * inv_sum[:, None]
        if seed is not None:
            weight_j *= kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
        tl.store(of_head + edge, weight_j, mask=inside)


@kernel
def softmax_backward(
        indptr, num_rows, weight, grad, seed, threshold: u64, keep_scale: fp64,
        grad_logit, deltas, num_edges, HEADS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr,
        EDGES: tl.constexpr):
    """Kernel: write the gradients of the logits of some queries, in a second pass over edges."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    begin = tl.load(indptr + row, mask=row < num_rows, other=0)
    end = tl.load(indptr + row + 1, mask=row < num_rows, other=0)
    longest = tl.max(end - begin, axis=0)
    of_head = head.to(tl.int64) * num_edges
    delta = tl.zeros([ROWS], DTYPE)
    for first in range(0, longest, EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        delta += tl.sum(_changes(weight, grad, of_head, edge, inside, seed, threshold, keep_scale,
                                 head, HEADS, DTYPE), axis=1)
    tl.store(deltas + row.to(tl.int64) * HEADS + head, delta, mask=row < num_rows)
    for first in range(0, longest, EDGES):
        edge = (begin + first)[:, None] + tl.arange(0, EDGES)[None, :]
        inside = edge < end[:, None]
        change = _changes(weight, grad, of_head, edge, inside, seed, threshold, keep_scale, head,
                          HEADS, DTYPE)
        weight_j = tl.load(weight + of_head + edge, mask=inside, other=0)
        tl.store(grad_logit + of_head + edge, change - weight_j * delta[:, None], mask=inside)


@triton.jit
def _changes(weight, grad, of_head, edge, inside, seed, threshold, keep_scale, head,
             HEADS: tl.constexpr, DTYPE: tl.constexpr):
    # weights times gradients; with a seed, weights before dropout, gradients after it
    change = (tl.load(weight + of_head + edge, mask=inside, other=0)
              * tl.load(grad + of_head + edge, mask=inside, other=0))
    if seed is not None:
        change *= kept(seed, threshold, keep_scale, edge, head, HEADS, DTYPE)
    return change
