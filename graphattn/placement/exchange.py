"""Keys and values of tokens that other processes hold."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph


class Exchange(Placement):
    """Placement over several processes: each receives what its edges need, before each hop again.

    Args:
        heads (int, optional): How many heads own a graph each; all share one if omitted.
        halo (Halo): Nodes that each process sends to each other one.
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
        """Return the rows of ``x`` that the halo's graph touches, wherever they are."""
        halo = self._halo
        x = ExchangedRows.apply(x, halo.send, halo.send_sizes, halo.receive_sizes, self._group)
        return x if halo.place is None else x[halo.place]


class Halo(NamedTuple):
    """Nodes that each process sends to each other one for its edges."""

    graph: BipartiteGraph  # of own queries, to the nodes that arrive, in their order
    send: Tensor  # own nodes, those for process 0 first, int64
    send_sizes: list[int]
    receive_sizes: list[int]
    place: Tensor | None  # of each node of the graph among those that arrive; as they come if None


class ExchangedRows(torch.autograd.Function):
    """Rows go to the processes that want them, and gradients come back and are added."""

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
    """Gather the rows of all processes; each has as many as ``sizes`` says."""
    num_own, num_processes = x.size(0), len(sizes)
    everyone = torch.arange(num_own, device=x.device).repeat(num_processes)
    return ExchangedRows.apply(x, everyone, [num_own] * num_processes, sizes, group)


def all_to_all(rows: Tensor, send_sizes: list[int] | None, receive_sizes: list[int] | None,
                group: dist.ProcessGroup) -> Tensor:
    """Return the rows that arrive, those of process 0 first. Without sizes as many arrive from each
    process as go to it."""
    num_rows = rows.size(0) if receive_sizes is None else sum(receive_sizes)
    arrived = rows.new_empty(num_rows, *rows.shape[1:])
    dist.all_to_all_single(arrived, rows, receive_sizes, send_sizes, group)
    return arrived


def all_gather(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Gather the values of all processes, ``[num_processes, ...]``."""
    size = dist.get_world_size(group)
    return all_to_all(mine.expand(size, *mine.shape).contiguous(), None, None, group)
