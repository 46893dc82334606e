"""Diffusion with given weights, in loops for CPUs: a sparse product for each hop and a slice of the
heads, forward and backward.

The *message* of a hop is the weighted sum of values at each query. All messages are stored for the
backward pass. The backward pass goes over the edges in the order by key, and uses the gradient of
each message twice: times the weight for the gradient of the value, and times the value for the
gradient of the weight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.edges import Edges
from graphattn.ops.cpu.gathered import add_weighted, add_weighted_and_dots
from graphattn.ops.cpu.jit import jit_inline
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.orders import head_major
from graphattn.ops.cpu.rows import add_row, clear_row, copy_row, dot_of_rows, multiply_row
from graphattn.ops.cpu.schedule import finish_and_next_item, next_item, run, wait_for_all


class Hops(NamedTuple):
    """Inputs of diffusion and workspaces for a slice of the heads, and the messages of all heads.
    The *message* of a query in a message-passing step (hop) is the weighted sum of the values of
    its keys."""

    start: Tensor  # the original values, [heads, nodes, channels]
    teleport: Tensor  # [hops, heads, nodes]
    messages: Tensor  # [hops, all heads, nodes, channels], or empty
    first_head: int  # of the slice
    spaces: list[Tensor]  # workspaces, [heads, nodes, channels] each

    @classmethod
    def of(cls, value: Tensor, teleport: Tensor, messages: Tensor, heads: slice,
           spaces: list[Tensor]) -> Hops:
        """Return the inputs of diffusion for the slice ``heads``.

        Args:
            value (Tensor): ``[nodes, all heads, channels]``; the slice is copied into
                ``spaces[0]``.
            teleport (Tensor): ``[hops, nodes, all heads]``.
            messages (Tensor): ``[hops, all heads, nodes, channels]``, or empty to keep no messages.
            heads (slice): The heads.
            spaces (list of Tensor): Workspaces, ``[heads, nodes, channels]`` each.
        """
        start = head_major(value, heads, spaces[0])
        teleport = teleport[..., heads].detach().to(start.dtype).transpose(1, 2).contiguous()
        return cls(start, teleport, messages, heads.start,
                   [space[:len(start)] for space in spaces[1:]])

    @property
    def shape(self) -> tuple[int, int]:
        """Return the argument ``shape`` of :func:`~graphattn.ops.cpu.schedule.run`: the number of
        heads, and the number of multiplications for each edge and head."""
        return len(self.start), self.start.size(2)

    def diffuse(self, edges: Edges, weight: Tensor) -> Tensor:
        """Return the values after the last hop, ``[heads, nodes, channels]``, and store the
        messages of all message-passing steps (hops) unless ``self.messages`` is empty. ``weight``
        is ``[heads, num_edges]``, sorted by query."""
        after, other, unkept = self.spaces
        messages, first_head = (self.messages, self.first_head) if len(self.messages) else (
            unkept.unsqueeze(0), 0)
        num_hops = len(self.teleport)
        run(_diffuse, edges, self.shape, self.start, weight, self.teleport, messages, first_head,
            after, other, num_phases=num_hops)
        return (after if num_hops % 2 else other) if num_hops else self.start


class HopGrads(NamedTuple):
    """Gradients of the values ``[nodes, heads, channels]`` and of the teleports ``[hops, nodes,
    heads]`` of diffusion."""

    value: Tensor
    teleport: Tensor

    @classmethod
    def of(cls, value: Tensor, teleport: Tensor, needs_teleport: bool) -> HopGrads:
        """Return uninitialised gradients of value and teleport. The gradient of the teleport is
        empty if it is not needed."""
        return cls(torch.empty_like(value),
                   teleport.new_empty(teleport.shape if needs_teleport else 0))

    def put(self, heads: slice, csc: Edges, hops: Hops, grad_out: Tensor, weight: Tensor,
            dot: Tensor) -> Tensor:
        """Write the gradients of values and teleports for a slice of the heads.

        Args:
            heads (slice): The heads.
            csc (Edges): The edges in the order by key.
            hops (Hops): Values and messages of these heads.
            grad_out (Tensor): Gradient of the output, of all heads.
            weight (Tensor): Weights of these heads in the order by key.
            dot (Tensor): The gradients of the weights are written here, unless it is empty.

        Returns:
            Tensor ``[heads, nodes]``: for each query, the sum over its edges of weight times
            gradient of the weight.
        """
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
    """Compute all message-passing steps of diffusion, as a loop for
    :func:`~graphattn.ops.cpu.schedule.run`.

    Each step writes its weighted sums of values to ``messages``, and mixes them with the original
    values ``start``. It writes the mixed values to ``after`` or to ``other``, in turn.
    """
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
    """Loop for :func:`~graphattn.ops.cpu.schedule.run`: compute the gradients of each hop, the last
    hop first.

    Let y be the values before a hop: the original values, or the result of the previous hop. The
    message of the hop is the weighted sum of y. From ``x``, the gradient of this message, the loop
    computes:

    - ``grad``, the gradient of y, which is the weighted sum of ``x``;
    - ``next_x``, the gradient of the message of the previous hop;
    - ``grad_start``, the gradient of the original values, a sum over hops;
    - ``grad_teleport``, the gradient of the teleports of the hop, unless the array is empty;
    - ``dot``, the gradient of each weight, which is the sum over hops of ``<x_i, y_j>``, unless the
      array is empty;
    - ``delta``, for each query the sum of weight times gradient of the weight.
    """
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
    """Write ``(1 - teleport) * message[i] + teleport * start[i]`` to ``out[row]``. If ``teleport``
    is 0, ``start`` is not read, so a non-finite value in it has no effect."""
    copy_row(out, row, 0, message, i, 0, message.shape[1])
    if teleport != 0:
        multiply_row(out, row, out.dtype.type(1 - teleport))
        add_row(out, row, teleport, start, i)
