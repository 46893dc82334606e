"""Attention weights of edges, their gradients, and weighted sums of values, in loops for CPUs.

One thread computes each sum, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.gathered import add_weighted, dots
from graphattn.ops.cpu.jit import jit_inline
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.orders import Orders, groups_of_heads, head_major, workspaces
from graphattn.ops.cpu.rows import clear_row, whole_vectors
from graphattn.ops.cpu.schedule import Edges, max_row_length, next_item, run
from graphattn.ops.cpu.simd import exp
from graphattn.ops.cpu.softmax import (
    Terms,
    drop_out,
    exponentials,
    keep,
    modify,
    modify_backward,
    put_max_inv_sum,
)
from graphattn.ops.edge_math import rest_of_sink
from graphattn.ops.registration import implement
from graphattn.ops.weights.cpu_dots import dots_on_edges
from graphattn.ops.weights.schema import empty_weights, grad_of_sink


@implement('attention_weights', 'cpu')
def attention_weights_cpu(given) -> tuple[Tensor, Tensor]:
    query, key, edges = given.query, given.key, Edges.of_rows(given.indptr, given.edge_key)
    weight, max_inv_sum = empty_weights(given)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [query, key])
    for heads in groups:
        terms = Terms.of(given.bias, given.gate, None, given.scale, 0., weight.dtype, heads,
                         query.size(1), given.softcap)
        logits = Logits.of(query, key, terms, heads, spaces)
        max_inv_sum[heads] = logits.softmax(edges, weight[heads], of_heads(given.sink, heads))
    return weight, max_inv_sum


@implement('attention_weights_backward', 'cpu')
def attention_weights_backward_cpu(given) -> tuple[Tensor | None, ...]:
    query, key, weight, grad = given.query, given.key, given.weight, given.grad_weight
    orders = Orders.of(given)
    csc_gate = orders.values_by_key(given.gate)
    grads = LogitGrads.of(given)
    deltas = weight.new_empty(weight.size(0), query.size(0))
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [query, key] * 2)
    for heads in groups:
        terms = Terms.of(None, csc_gate, None, given.scale, 0., weight.dtype, heads,
                         query.size(1), given.softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        # torch 2.13 reads out of bounds if a single edge has the strides of a transposed tensor.
        change = torch.mul(weight[heads], grad[heads],
                           out=weight.new_empty(weight[heads].shape))
        delta = torch.segment_reduce(change, 'sum', offsets=given.indptr.expand(len(change), -1),
                                     axis=1)
        grads.put(heads, orders, logits, spaces[2:],
                  EdgeGrads(orders.to_key_order(weight[heads]), given.max_inv_sum[heads],
                            orders.to_key_order(grad[heads]), delta, change))
        deltas[heads] = delta
    return *grads, grad_of_sink(given, deltas.t())


@implement('weighted_sum', 'cpu')
def weighted_sum_cpu(given) -> Tensor:
    edges = Edges.of_rows(given.indptr, given.edge_key)
    return _sum_by_weights(given.weight.t(), given.value, edges)


@implement('weighted_sum_backward', 'cpu')
def weighted_sum_backward_cpu(given) -> tuple[Tensor | None, Tensor | None]:
    grad_weight = grad_value = None
    if given.needs_weight:
        grad_weight = dots_on_edges(given.grad_out, given.value, given)
    if given.needs_value:
        csc = Edges.of_rows(given.key_indptr, given.edge_query, given.perm)
        grad_value = _sum_by_weights(given.weight[given.perm].t(), given.grad_out, csc)
    return grad_weight, grad_value


def _sum_by_weights(weight: Tensor, x: Tensor, edges: Edges) -> Tensor:
    out = x.new_empty(len(edges.indptr) - 1, *x.shape[1:])
    groups = groups_of_heads(*weight.shape)
    space, sums = workspaces(groups, [x, out])
    for heads in groups:
        own = head_major(x, heads, space)
        group = sums[:len(own)]
        run(weighted_sums, edges, (len(own), x.size(2)), own,
            weight[heads].to(own.dtype).contiguous(), group)
        out[:, heads] = group.transpose(0, 1)
    return out


class Logits(NamedTuple):
    query: Tensor  # [heads, num_queries, channels]
    key: Tensor  # [heads, num_keys, channels]
    terms: Terms

    @classmethod
    def of(cls, query: Tensor, key: Tensor, terms: Terms, heads: slice,
           spaces: list[Tensor]) -> Logits:
        # query, key: [nodes, all heads, channels], copied into the workspaces
        return cls(*(head_major(x, heads, space) for x, space in zip((query, key), spaces)), terms)

    @property
    def shape(self) -> tuple[int, int]:
        # for schedule.run
        return len(self.query), self.query.size(2)

    def softmax(self, edges: Edges, weight: Tensor, sink: Tensor | None) -> Tensor:
        """Write the weights after dropout, and return the softmax sums, sinks included."""
        # weight: [heads, num_edges]; sink: [heads, num_queries or 1]; the sums, maximum logit m and
        # 1 over the sum of exp(logit - m): [heads, num_queries, 2]
        max_inv_sum = self.query.new_empty(*self.query.shape[:2], 2)
        run(_softmax, edges, self.shape, *self, weight, max_inv_sum)
        if sink is not None:
            degree = torch.from_numpy(np.diff(edges.indptr))
            weight *= rest_of_sink(sink, max_inv_sum).repeat_interleave(degree, dim=1)
        return max_inv_sum

    def softmax_by_key(self, csc: Edges, weight: Tensor, max_inv_sum: Tensor) -> None:
        """Write the weights in the order by key, in which bias and gate must be too."""
        run(_softmax_by_key, csc, self.shape, *self, weight, max_inv_sum)


def of_heads(sink: Tensor | None, heads: slice) -> Tensor | None:
    # [heads, num_queries or 1] of [num_queries or 1, all heads]
    return None if sink is None else sink.t()[heads if sink.size(1) > 1 else slice(None)]


class EdgeGrads(NamedTuple):
    """Weights and their gradients, from which gradients of logits come, for a slice of the
    heads."""

    weight: Tensor  # attention weights after dropout, in the order by key, [heads, num_edges]
    max_inv_sum: Tensor  # row maxima and inverse sums, [heads, num_queries, 2]
    dot: Tensor  # gradients of the weights, in the order by key, [heads, num_edges]
    delta: Tensor  # for each query, the sum of weight times ``dot``, [heads, num_queries]
    workspace: Tensor  # for the gradients of logits in the order by query


class LogitGrads(NamedTuple):
    query: Tensor
    key: Tensor
    bias: Tensor
    gate: Tensor

    @classmethod
    def of(cls, given) -> LogitGrads:
        # given: arguments of an operator for gradients; those of bias and gate are zeros, or empty
        # if not needed
        query, key = given.query, given.key
        bias, gate = (torch.zeros_like(values) if needed else query.new_empty(0)
                      for values, needed in ((given.bias, given.needs_bias),
                                             (given.gate, given.needs_gate)))
        return cls(query.new_empty(query.shape), key.new_empty(key.shape), bias, gate)

    def put(self, heads: slice, orders: Orders, logits: Logits, spaces: list[Tensor],
            edges: EdgeGrads) -> None:
        """Write the gradients of a slice of the heads."""
        num_heads = len(logits.query)
        grad_query, grad_key = (space[:num_heads] for space in spaces)
        edge_grads = [edges.dot.new_empty(len(grad), num_heads) for grad in (self.bias, self.gate)]
        run(_softmax_backward, orders.csc, logits.shape, *logits, *edges, grad_key, *edge_grads)
        run(weighted_sums, orders.csr, logits.shape, logits.key, edges.workspace, grad_query)
        self.query[:, heads] = grad_query.transpose(0, 1)
        self.key[:, heads] = grad_key.transpose(0, 1)
        for grad, csc_grad in zip((self.bias, self.gate), edge_grads):
            if len(grad) and grad.size(1) == 1:
                # heads share the bias or the gate
                grad[orders.perm] += csc_grad.sum(dim=1, keepdim=True)
            elif len(grad):
                grad[orders.perm, heads] = csc_grad


# Loops ###############################################################################


@in_threads
def _softmax(items, progress, query, key, terms, weight, max_inv_sum, edges):
    indptr, edge_key = edges.indptr, edges.column
    logit = np.empty(max_row_length(indptr), query.dtype)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        for i in range(begin, end):
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            row_max, row_sum = query.dtype.type(-np.inf), query.dtype.type(0)
            if n > 0:
                dots(logit, query[head], i, key[head], 0, edge_key[first:], n)
                modify(logit, terms, first, n, head)
                row_max, row_sum = exponentials(logit, n, row_max)
            put_max_inv_sum(max_inv_sum[head], i, row_max, row_sum)
            inv_sum, row_weight = max_inv_sum[head, i, 1], weight[head, first:first + n]
            for e in range(n):
                row_weight[e] = logit[e] * inv_sum
            drop_out(row_weight, terms, first, n, head)
        item = next_item(progress, 0)


@jit_inline
def _weigh(weight, key, j, query, terms, max_inv_sum, row_query, head, first, n):
    # before dropout; max_inv_sum is written by _softmax
    dots(weight, key[head], j, query[head], 0, row_query, n)
    modify(weight, terms, first, n, head)
    for e in range(n):
        # Indices are unsigned, so that numba does not test whether they are negative.
        weight[e] -= max_inv_sum[head, np.uint64(row_query[e]), 0]
    for e in range(whole_vectors(n)):
        weight[e] = exp(weight[e])
    for e in range(n):
        weight[e] *= max_inv_sum[head, np.uint64(row_query[e]), 1]


@in_threads
def _softmax_by_key(items, progress, query, key, terms, weight, max_inv_sum, edges):
    indptr, edge_query, perm = edges.indptr, edges.column, edges.perm
    row_weight = np.empty(max_row_length(indptr), query.dtype)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        for j in range(begin, end):
            first, n = indptr[j], indptr[j + 1] - indptr[j]
            _weigh(row_weight, key, j, query, terms, max_inv_sum, edge_query[first:first + n], head,
                   first, n)
            if terms.threshold > 0:
                for e in range(n):
                    row_weight[e] *= keep(terms, perm[first + e], head)
            target = weight[head, first:first + n]
            for e in range(n):
                target[e] = row_weight[e]
        item = next_item(progress, 0)


@in_threads
def _softmax_backward(
        items, progress, query, key, terms, weight, max_inv_sum, dot, delta, grad_logit,
        grad_key, grad_bias, grad_gate, edges):
    # grad_logit is sorted by query, grad_bias and grad_gate [num_edges, heads] by key, or empty if
    # not needed; weight to delta: fields of EdgeGrads
    indptr, edge_query, perm = edges.indptr, edges.column, edges.perm
    longest = max_row_length(indptr)
    change, product = np.empty(longest, query.dtype), np.empty(longest, query.dtype)
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        for j in range(begin, end):
            clear_row(grad_key[head], j)
            first, n = indptr[j], indptr[j + 1] - indptr[j]
            row_weight, row_dot = weight[head, first:first + n], dot[head, first:first + n]
            row_query, row_perm = edge_query[first:first + n], perm[first:first + n]
            if terms.threshold > 0:  # recompute the weights before dropout
                _weigh(product, key, j, query, terms, max_inv_sum, row_query, head, first, n)
                for e in range(n):
                    change[e] = (row_weight[e] * row_dot[e]
                                 - product[e] * delta[head, np.uint64(row_query[e])])
            else:
                for e in range(n):
                    change[e] = row_weight[e] * (row_dot[e] - delta[head, np.uint64(row_query[e])])
            if grad_gate.shape[0] > 0 or terms.softcap is not None:
                dots(product, key[head], j, query[head], 0, row_query, n)
            modify_backward(change, product, terms, grad_bias, grad_gate, first, n, head)
            for e in range(n):
                grad_logit[head, np.uint64(row_perm[e])] = change[e]
            add_weighted(grad_key[head], j, change, query[head], 0, row_query, n)
        item = next_item(progress, 0)


@in_threads
def weighted_sums(items, progress, x, weight, out, edges):
    """Loop: write the weighted sum of ``x`` over the edges of each row to ``out``."""
    indptr, edge_key = edges.indptr, edges.column
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        for i in range(begin, end):
            clear_row(out[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            add_weighted(out[head], i, weight[head, first:], x[head], 0, edge_key[first:], n)
        item = next_item(progress, 0)
