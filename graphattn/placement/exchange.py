"""Placement over several processes, each of which holds a part of the tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.placement.roll_call import naming_absent


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

    def pairs(self, key: Tensor, value: Tensor,
              graph: BipartiteGraph) -> tuple[Tensor, Tensor, BipartiteGraph]:
        """Exchange keys and values together."""
        both = self._exchanged(torch.cat([key, value], dim=-1))
        key, value = both.split([key.size(-1), value.size(-1)], dim=-1)
        return key.contiguous(), value.contiguous(), self._halo.graph

    def _exchanged(self, x: Tensor) -> Tensor:
        """Return the rows of ``x``, of any process, that the halo's graph needs."""
        halo = self._halo
        x = exchanged(x, halo.send, halo.send_sizes, halo.receive_sizes, self._group)
        return x if halo.place is None else x.index_select(0, halo.place)


class Halo(NamedTuple):
    """Nodes that each process sends to every other process."""

    graph: BipartiteGraph  # from the received nodes to own queries
    send: Tensor  # own nodes to send, in the order of the receiving processes, int64
    send_sizes: list[int]
    receive_sizes: list[int]
    place: Tensor | None  # index of each key among the received nodes; None if in the same order


def exchanged(x: Tensor, send: Tensor, send_sizes: list[int], receive_sizes: list[int],
              group: dist.ProcessGroup) -> Tensor:
    """Send rows to the processes that need them, and return those received. The backward pass
    returns and adds gradients."""
    return _Sent.apply(x.index_select(0, send), send_sizes, receive_sizes, group)


class _Sent(torch.autograd.Function):
    """Rows of other processes; torch's own function would not name a process that is absent in the
    backward pass."""

    @staticmethod
    def forward(rows: Tensor, send_sizes: list[int], receive_sizes: list[int],
                group: dist.ProcessGroup) -> Tensor:
        with naming_absent(group):
            return wait_tensor(all_to_all_single(rows.contiguous(), receive_sizes, send_sizes,
                                                 group))

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        _, *ctx.way = inputs

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        send_sizes, receive_sizes, group = ctx.way
        return _Sent.apply(grad, receive_sizes, send_sizes, group), None, None, None


def gathered(x: Tensor, sizes: list[int], group: dist.ProcessGroup) -> Tensor:
    """Gather the rows of all processes; process i has ``sizes[i]``."""
    num_own, num_processes = x.size(0), len(sizes)
    everyone = torch.arange(num_own, device=x.device).repeat(num_processes)
    return exchanged(x, everyone, [num_own] * num_processes, sizes, group)


def all_to_all(rows: Tensor, send_sizes: list[int] | None, receive_sizes: list[int] | None,
                group: dist.ProcessGroup) -> Tensor:
    """Exchange rows and return those received, in the order of the sending processes. Without
    sizes, every process gets an equal part of the rows."""
    num_rows = rows.size(0) if receive_sizes is None else sum(receive_sizes)
    arrived = rows.new_empty(num_rows, *rows.shape[1:])
    with naming_absent(group):
        dist.all_to_all_single(arrived, rows, receive_sizes, send_sizes, group)
    return arrived


def all_gather(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Gather a tensor of every process, ``[num_processes, ...]``."""
    size = dist.get_world_size(group)
    return all_to_all(mine.expand(size, *mine.shape).contiguous(), None, None, group)
