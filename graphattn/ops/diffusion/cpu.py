"""Attention over several hops, in loops for CPUs: weights once, and a sparse product for each hop.

The forward pass stores the row maximum and the inverse sum of each query and head, and the message
of every hop: the weighted sum of values at each query. The backward pass recomputes the weights in
the order by key, and uses the gradient of each message twice, for the gradients of values and of
weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.gathered import add_weighted, add_weighted_and_dots
from graphattn.ops.cpu.jit import jit_inline
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.orders import Orders, groups_of_heads, head_major, workspaces
from graphattn.ops.cpu.rows import add_row, clear_row, copy_row, dot_of_rows, multiply_row
from graphattn.ops.cpu.schedule import Edges, finish_and_next_item, next_item, run, wait_for_all
from graphattn.ops.cpu.softmax import Terms
from graphattn.ops.diffusion.schema import empty_results, needs_weights
from graphattn.ops.registration import accumulation_dtype, empty_max_inv_sum, implement
from graphattn.ops.weights.cpu import EdgeGrads, LogitGrads, Logits, of_heads
from graphattn.ops.weights.schema import grad_of_sink


@implement('attention_diffusion', 'cpu')
def attention_diffusion_cpu(given) -> tuple[Tensor, Tensor]:
    weight, value, edges = given.weight, given.value, Edges.of_rows(given.indptr, given.edge_key)
    out, messages = empty_results(given)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [value] * 4)
    for heads in groups:
        hops = Hops.of(value, given.teleport, messages, heads, spaces)
        out[:, heads] = hops.diffuse(edges, weight[heads]).transpose(0, 1)
    return out, messages


@implement('attention_diffusion_backward', 'cpu')
def attention_diffusion_backward_cpu(given) -> tuple[Tensor | None, ...]:
    weight, value, orders = given.weight, given.value, Orders.of(given)
    grad_weight = weight.new_empty(weight.shape) if given.needs_weight else None
    grads = HopGrads.of(given)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [value] * 5)
    for heads in groups:
        hops = Hops.of(value, given.teleport, given.messages, heads, spaces)
        csc_weight = orders.to_key_order(weight[heads])
        dot = torch.empty_like(csc_weight) if given.needs_weight else csc_weight[:, :0]
        grads.put(heads, orders.csc, hops, given.grad_out, csc_weight, dot)
        if given.needs_weight:
            orders.to_query_order(dot, grad_weight[heads])
    return grad_weight, *grads


@implement('diffused_attention', 'cpu')
def diffused_attention_cpu(given) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = given.query, given.key, given.value
    edges, dtype = Edges.of_rows(given.indptr, given.edge_key), accumulation_dtype(query)
    (out, messages), max_inv_sum = empty_results(given), empty_max_inv_sum(query)
    groups = groups_of_heads(query.size(1), len(edges.column))
    *spaces, weights = workspaces(groups, [query, key] + [value] * 4, [given.edge_key])
    for heads in groups:
        terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p, dtype,
                         heads, query.size(1), given.softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        hops = Hops.of(value, given.teleport, messages, heads, spaces[2:])
        weight = weights[:len(logits.query)]
        max_inv_sum[heads] = logits.softmax(edges, weight, of_heads(given.sink, heads))
        out[:, heads] = hops.diffuse(edges, weight).transpose(0, 1)
    return out, max_inv_sum, messages


@implement('diffused_attention_backward', 'cpu')
def diffused_attention_backward_cpu(given) -> tuple[Tensor | None, ...]:
    query, key, value, max_inv_sum = given.query, given.key, given.value, given.max_inv_sum
    orders, needs_weight = Orders.of(given), needs_weights(given)
    csc_bias, csc_gate = orders.values_by_key(given.bias), orders.values_by_key(given.gate)
    logit_grads, hop_grads = LogitGrads.of(given), HopGrads.of(given)
    deltas = max_inv_sum.new_empty(max_inv_sum.shape[:2])
    groups = groups_of_heads(query.size(1), given.edge_key.numel())
    *spaces, weights, dots, grad_logits = workspaces(groups, [query, key] * 2 + [value] * 5,
                                                     [given.edge_key] * 3)
    dots = dots if needs_weight else dots[:, :0]
    for heads in groups:
        terms = Terms.of(csc_bias, csc_gate, given.seed, given.scale, given.dropout_p,
                         max_inv_sum.dtype, heads, query.size(1), given.softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        hops = Hops.of(value, given.teleport, given.messages, heads, spaces[4:])
        weight, dot, grad_logit = (x[:len(logits.query)] for x in (weights, dots, grad_logits))
        logits.softmax_by_key(orders.csc, weight, max_inv_sum[heads])
        deltas[heads] = delta = hop_grads.put(heads, orders.csc, hops, given.grad_out, weight, dot)
        if needs_weight:
            logit_grads.put(heads, orders, logits, spaces[2:4],
                            EdgeGrads(weight, max_inv_sum[heads], dot, delta, grad_logit))
    return *logit_grads, grad_of_sink(given, deltas.t()), *hop_grads


class Hops(NamedTuple):
    """Inputs of diffusion and workspaces for a slice of the heads, and the messages of all
    heads."""

    start: Tensor  # the original values, [heads, nodes, channels]
    teleport: Tensor  # [hops, heads, nodes]
    messages: Tensor  # [hops, all heads, nodes, channels], or empty
    first_head: int  # of the slice
    spaces: list[Tensor]  # workspaces, [heads, nodes, channels] each

    @classmethod
    def of(cls, value: Tensor, teleport: Tensor, messages: Tensor, heads: slice,
           spaces: list[Tensor]) -> Hops:
        # value: [nodes, all heads, channels], copied into spaces[0]; teleport: [hops, nodes, all
        # heads]
        start = head_major(value, heads, spaces[0])
        teleport = teleport[..., heads].detach().to(start.dtype).transpose(1, 2).contiguous()
        return cls(start, teleport, messages, heads.start,
                   [space[:len(start)] for space in spaces[1:]])

    @property
    def shape(self) -> tuple[int, int]:
        # for schedule.run
        return len(self.start), self.start.size(2)

    def diffuse(self, edges: Edges, weight: Tensor) -> Tensor:  # weight: [heads, num_edges]
        """Return the values after the last hop, and store the messages unless there is no space."""
        after, other, unkept = self.spaces
        messages, first_head = (self.messages, self.first_head) if len(self.messages) else (
            unkept.unsqueeze(0), 0)
        num_hops = len(self.teleport)
        run(_diffuse, edges, self.shape, self.start, weight, self.teleport, messages, first_head,
            after, other, num_phases=num_hops)
        return (after if num_hops % 2 else other) if num_hops else self.start


class HopGrads(NamedTuple):
    value: Tensor
    teleport: Tensor

    @classmethod
    def of(cls, given) -> HopGrads:
        value, teleport = given.value, given.teleport
        return cls(value.new_empty(value.shape),
                   teleport.new_empty(teleport.shape if given.needs_teleport else 0))

    def put(self, heads: slice, csc: Edges, hops: Hops, grad_out: Tensor, weight: Tensor,
            dot: Tensor) -> Tensor:
        """Write gradients of a slice of the heads, and return the sums of weight times its
        gradient."""
        # weight: by key; dot: gets the gradients of the weights unless it is empty; the result is
        # [heads, nodes]
        start, teleport, messages, first_head, (grad, next_x, x, grad_start) = hops
        head_major(grad_out, heads, grad)
        last_teleport = teleport[0] if len(teleport) else torch.ones_like(start[..., 0])
        torch.mul(1 - last_teleport.unsqueeze(2), grad, out=x)
        torch.mul(last_teleport.unsqueeze(2), grad, out=grad_start)
        delta = torch.zeros_like(last_teleport)
        grad_teleport = torch.empty_like(teleport if len(self.teleport) else teleport[:, :0])
        run(_diffuse_backward, csc, hops.shape, x, weight, start, teleport, messages, first_head,
            grad, next_x, grad_start, grad_teleport, dot, delta, num_phases=len(teleport))
        self.value[:, heads] = grad_start.transpose(0, 1)
        if len(self.teleport):
            self.teleport[..., heads] = grad_teleport.transpose(1, 2)
        return delta


# Loops ###############################################################################


@in_threads
def _diffuse(items, progress, start, weight, teleport, messages, first_head, after, other, edges):
    # mixed values are written to ``after`` and ``other`` in turn
    indptr, edge_key = edges.indptr, edges.column
    x = start
    for hop in range(len(teleport) - 1, -1, -1):
        kept = min(hop, len(messages) - 1)
        item = next_item(progress, hop)
        while item < len(items):
            head, begin, end = items[item, 0], items[item, 1], items[item, 2]
            message = messages[kept, first_head + head]
            for i in range(begin, end):
                clear_row(message, i)
                first, n = indptr[i], indptr[i + 1] - indptr[i]
                add_weighted(message, i, weight[head, first:], x[head], 0, edge_key[first:], n)
                restart_row(after[head], i, message, start[head], teleport[hop, head, i], i)
            item = finish_and_next_item(progress, hop)
        wait_for_all(items, progress, hop)
        x, after, other = after, other, after


@in_threads
def _diffuse_backward(
        items, progress, x, weight, start, teleport, messages, first_head, grad, next_x, grad_start,
        grad_teleport, dot, delta, edges):
    # Let y be the values before a hop, whose message is their weighted sum. From x, the gradient of
    # this message: grad, of y; next_x, of the previous message; grad_start, grad_teleport and dot,
    # of original values, teleports and weights, summed over hops, the latter two unless empty;
    # delta, the sum of weight times its gradient of each query.
    indptr, edge_query = edges.indptr, edges.column
    y = np.empty((1, x.shape[2]), x.dtype)
    for hop in range(len(teleport)):  # the last hop first
        before, is_first = hop + 1, hop == len(teleport) - 1
        item = next_item(progress, hop)
        while item < len(items):
            head, begin, end = items[item, 0], items[item, 1], items[item, 2]
            hop_message = messages[hop, first_head + head]
            message = start[head] if is_first else messages[before, first_head + head]
            for i in range(begin, end):
                # y is the message mixed with the original values, or the original values alone.
                restart = x.dtype.type(0) if is_first else teleport[before, head, i]
                to_start = x.dtype.type(1) if is_first else restart  # factor of the gradient of y
                if grad_teleport.shape[1] > 0:
                    grad_teleport[hop, head, i] = (dot_of_rows(grad[head], start[head], i)
                                                 - dot_of_rows(grad[head], hop_message, i))
                clear_row(grad[head], i)
                delta[head, i] += dot_of_rows(x[head], hop_message, i)
                first, n = indptr[i], indptr[i + 1] - indptr[i]
                row_weight, row_query = weight[head, first:], edge_query[first:]
                if dot.shape[1] == 0:
                    add_weighted(grad[head], i, row_weight, x[head], 0, row_query, n)
                else:
                    row_dot = dot[head, first:first + n]
                    if hop == 0:
                        for e in range(n):
                            row_dot[e] = 0
                    restart_row(y, 0, message, start[head], restart, i)
                    add_weighted_and_dots(grad[head], i, row_weight, row_dot, y, x[head],
                                          row_query, n)
                copy_row(next_x[head], i, 0, grad[head], i, 0, grad.shape[2])
                multiply_row(next_x[head], i, x.dtype.type(1 - to_start))
                add_row(grad_start[head], i, to_start, grad[head], i)
            item = finish_and_next_item(progress, hop)
        wait_for_all(items, progress, hop)
        x, next_x = next_x, x


@jit_inline
def restart_row(out, row, message, start, teleport, i):
    """Write ``(1 - teleport) * message[i] + teleport * start[i]`` to ``out[row]``."""
    copy_row(out, row, 0, message, i, 0, message.shape[1])
    # so that a non-finite start has no effect with a teleport of 0
    if teleport != 0:
        multiply_row(out, row, out.dtype.type(1 - teleport))
        add_row(out, row, teleport, start, i)
