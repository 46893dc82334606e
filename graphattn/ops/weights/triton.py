"""Attention weights of edges, and their gradients, in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.attention.triton import attend
from graphattn.ops.edge_math import take_sink
from graphattn.ops.registration import implement, sum_to
from graphattn.ops.triton.launch import TYPES, Tile, fp64, kernel, launch, u64
from graphattn.ops.triton.rows import Rows
from graphattn.ops.triton.softmax import Terms, kept
from graphattn.ops.weights.schema import grad_of_sink
from graphattn.ops.weights.triton_rows import dot_rows, sum_rows, weigh

_EDGES_AT_ONCE = 64  # of a program that loads only scalars of each edge, and no vectors


@implement('attention_weights', 'cuda')
def attention_weights_cuda(given) -> tuple[Tensor, Tensor]:
    query, key = given.query, given.key
    rows = Rows.of(given.indptr, given.edge_key, len(key))
    terms = Terms.of(given.bias, given.gate, None, given.scale, 0., given.softcap)
    max_inv_sum = row_max_inv_sum(query, key, rows, terms, given.sink)
    weight = weigh(query, key, rows, terms, max_inv_sum)
    return weight, max_inv_sum.transpose(0, 1).contiguous()


@implement('attention_weights_backward', 'cuda')
def attention_weights_backward_cuda(given) -> tuple[Tensor | None, ...]:
    both, no_terms = BothOrders.of(given), Terms.of(None, None, None, 1., 0.)
    grad_logit, delta = grads_of_logits(given.weight, given.grad_weight, both.csr, no_terms)
    return *both.grads(grad_logit, given), grad_of_sink(given, delta)


class BothOrders(NamedTuple):
    """The edges of a graph sorted by query and by key, and the permutation between these."""

    csr: Rows
    csc: Rows
    perm: Tensor

    @classmethod
    def of(cls, given) -> BothOrders:
        # given: arguments of an operator, among them registration.BOTH_ORDERS
        num_queries, num_keys = given.indptr.numel() - 1, given.key_indptr.numel() - 1
        by_key = Rows.of(given.key_indptr, given.edge_query, num_queries)
        return cls(Rows.of(given.indptr, given.edge_key, num_keys), by_key, given.perm)

    def grads(self, grad_logit: Tensor, given) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key, bias and gate, given those of logits."""
        # given: arguments of an operator for gradients
        query, key, gate, scale, softcap = (given.query, given.key, given.gate, given.scale,
                                            given.softcap)
        grad_bias = sum_to(grad_logit.t(), given.bias).contiguous() if given.needs_bias else None
        grad_gate, factor = None, scale if gate is None else scale * gate.t()
        if given.needs_gate or softcap > 0:
            dot = torch.empty_like(grad_logit)
            dot_rows(query, key, self.csr, dot)
        if softcap > 0:
            grad_logit = grad_logit * (1 - (dot * factor / softcap).tanh().square())
        if given.needs_gate:
            grad_gate = sum_to((grad_logit * dot * scale).t(), gate).contiguous()
        grad_dot = grad_logit * factor
        return (sum_rows(grad_dot, key, self.csr, key.dtype),
                sum_rows(grad_dot[:, self.perm], query, self.csc, query.dtype), grad_bias,
                grad_gate)


def row_max_inv_sum(query: Tensor, key: Tensor, rows: Rows, terms: Terms,
                    sink: Tensor | None) -> Tensor:
    """Return the softmax sums of each query, sink included, ``[num_queries, heads, 2]``."""
    _, max_inv_sum = attend(query, key, key[..., :0], rows, terms._replace(seed=None))
    take_sink(sink, max_inv_sum)
    return max_inv_sum


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
