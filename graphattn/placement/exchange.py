"""Placement over several processes. Each process stores the keys and values of some tokens.

A node is a token, or a token in one head if each head has its own graph. The nodes that a process
needs but other processes store are its halo.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.placement.messages import all_to_all, exchanged
from graphattn.placement.overlap import Split, attend_overlapped


class Exchange(Placement):
    """Placement of keys and values on several processes. Before every message-passing step (hop),
    each process receives the keys and values that its edges need.

    Args:
        heads (int, optional): Number of heads, if each head has its own graph; None if all heads
            share the graph.
        halo (Halo): Plan of the exchange.
        group (ProcessGroup): The processes.
    """

    has_all_values = False

    def __init__(self, heads: int | None, halo: Halo, group: dist.ProcessGroup):
        super().__init__(heads)
        self._halo, self._group = halo, group

    @property
    def in_parts(self) -> bool:
        return self._halo.split is not None

    def edges(self, graph: BipartiteGraph) -> BipartiteGraph:
        return graph if self._halo.graph is None else self._halo.graph

    def keys(self, key: Tensor) -> Tensor:
        return self._exchanged(key)[0]

    def values(self, value: Tensor, hop: int) -> Tensor:
        return self._exchanged(value)[0]

    def pairs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the edges of this process need, fetched from all
        processes in one message."""
        return self._exchanged(key, value)

    def attend(self, kernel: Backend, query: Tensor, key: Tensor, value: Tensor,
               terms: LogitTerms) -> Tensor:
        return attend_overlapped(kernel, query, key, value, terms, self._halo.split, self._group)

    def _exchanged(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        halo, widths = self._halo, [x.size(-1) for x in tensors]
        rows = torch.cat([x.index_select(0, halo.send) for x in tensors], dim=-1)
        rows = exchanged(rows, halo.send_sizes, halo.receive_sizes, self._group)
        rows = rows if halo.place is None else rows.index_select(0, halo.place)
        # the rows that the edges of this process need, in the order of their keys
        return tuple(part.contiguous() for part in rows.split(widths, dim=-1))


class Halo(NamedTuple):
    """Plan by which processes exchange keys and values."""

    graph: BipartiteGraph | None  # from received nodes to own queries; None: all nodes are received
    send: Tensor  # own nodes to send, in the order of the receiving processes, int64
    send_sizes: list[int]  # number of nodes to send to each process
    receive_sizes: list[int]  # number of nodes to receive from each process
    place: Tensor | None  # index of each key among the received nodes; None if the order is equal
    split: Split | None = None  # to compute while messages arrive; None if that is not faster


def sent_to_all(owner: Tensor, number: Tensor,
                group: dist.ProcessGroup) -> tuple[Tensor, list[int], list[int], Tensor | None]:
    """Plan an exchange in which every process receives the same nodes, as fields of a
    :class:`Halo`."""
    # owner: process of each node, number: index among the nodes of its owner. No requests.
    rank, num_processes = dist.get_rank(group), dist.get_world_size(group)
    receive_sizes = owner.bincount(minlength=num_processes).tolist()
    return (number[owner == rank].repeat(num_processes), [receive_sizes[rank]] * num_processes,
            receive_sizes, place_of(owner.argsort(stable=True)))


def requested(owner: Tensor, number: Tensor, sizes: Tensor,
              group: dist.ProcessGroup) -> tuple[Tensor, list[int], list[int], Tensor | None]:
    """Plan an exchange in which each process receives what it requests, as fields of a
    :class:`Halo`."""
    # Requests are messages, so every process must call this. sizes: nodes that each process (row)
    # requests from each process (column).
    rank = dist.get_rank(group)
    receive_sizes, send_sizes = sizes[rank].tolist(), sizes[:, rank].tolist()
    order = owner.argsort(stable=True)
    send = all_to_all(number[order], receive_sizes, send_sizes, group)
    return send, send_sizes, receive_sizes, place_of(order)


def place_of(order: Tensor) -> Tensor | None:
    """Return the inverse of the permutation ``order``, or None if it is the identity."""
    return None if bool((order.diff() > 0).all()) else order.argsort()
