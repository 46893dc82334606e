"""Placement over several processes, each of which holds a part of the tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph


class Exchange(Placement):
    """Keys and values of several processes: before every hop, each receives the rows that its edges
    need.

    Args:
        heads (int, optional): Number of heads that own a graph; all share one if omitted.
        halo (Halo): Nodes that each process sends to every other process.
        group (ProcessGroup): The processes.
    """

    has_all_values = False

    def __init__(self, heads: int | None, halo: Halo, group: dist.ProcessGroup):
        super().__init__(heads)
        self._halo, self._group = halo, group

    def keys(self, key: Tensor, graph: BipartiteGraph) -> tuple[Tensor, BipartiteGraph]:
        return self._exchanged(key), self._halo.graph

    def values(self, value: Tensor, hop: int) -> Tensor:
        return self._exchanged(value)

    def _exchanged(self, x: Tensor) -> Tensor:
        """Return the rows of ``x``, of any process, that the halo's graph needs."""
        halo = self._halo
        x = ExchangedRows.apply(x, halo.send, halo.send_sizes, halo.receive_sizes, self._group)
        return x if halo.place is None else x[halo.place]


class Halo(NamedTuple):
    """Nodes that each process sends to every other process."""

    graph: BipartiteGraph  # from the received nodes to own queries
    send: Tensor  # own nodes to send, in the order of the receiving processes, int64
    send_sizes: list[int]
    receive_sizes: list[int]
    place: Tensor | None  # index of each key among the received nodes; None if in the same order


class ExchangedRows(torch.autograd.Function):
    """Send rows to the processes that need them; the backward pass returns and adds gradients."""

    @staticmethod
    def forward(ctx, x, send, send_sizes, receive_sizes, group):
        ctx.save_for_backward(send)
        ctx.shape, ctx.sizes, ctx.group = x.shape, (receive_sizes, send_sizes), group
        return all_to_all(x[send], send_sizes, receive_sizes, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        send, = ctx.saved_tensors
        returned = all_to_all(grad.contiguous(), *ctx.sizes, ctx.group)
        grad_x = returned.new_zeros(ctx.shape).index_add_(0, send, returned)
        return grad_x, None, None, None, None


def gathered(x: Tensor, sizes: list[int], group: dist.ProcessGroup) -> Tensor:
    """Gather the rows of all processes; process i has ``sizes[i]``."""
    num_own, num_processes = x.size(0), len(sizes)
    everyone = torch.arange(num_own, device=x.device).repeat(num_processes)
    return ExchangedRows.apply(x, everyone, [num_own] * num_processes, sizes, group)


def all_to_all(rows: Tensor, send_sizes: list[int] | None, receive_sizes: list[int] | None,
                group: dist.ProcessGroup) -> Tensor:
    """Exchange rows and return those received, in the order of the sending processes. Without
    sizes, every process gets an equal part of the rows."""
    num_rows = rows.size(0) if receive_sizes is None else sum(receive_sizes)
    arrived = rows.new_empty(num_rows, *rows.shape[1:])
    dist.all_to_all_single(arrived, rows, receive_sizes, send_sizes, group)
    return arrived


def all_gather(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Gather a tensor of every process, ``[num_processes, ...]``."""
    size = dist.get_world_size(group)
    return all_to_all(mine.expand(size, *mine.shape).contiguous(), None, None, group)
