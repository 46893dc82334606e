"""Placement over several processes, each of which holds a part of the tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.placement.messages import exchanged
from graphattn.placement.overlap import Split, attend_overlapped


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

    def edges(self, graph: BipartiteGraph) -> BipartiteGraph:
        return graph if self._halo.graph is None else self._halo.graph

    def keys(self, key: Tensor) -> Tensor:
        return self._exchanged(key)

    def values(self, value: Tensor, hop: int) -> Tensor:
        return self._exchanged(value)

    def pairs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Exchange keys and values together."""
        both = self._exchanged(torch.cat([key, value], dim=-1))
        key, value = both.split([key.size(-1), value.size(-1)], dim=-1)
        return key.contiguous(), value.contiguous()

    def overlaps(self, kernel: Backend) -> bool:
        return self._halo.split is not None and kernel.attention_part is not None

    def attend(self, kernel: Backend, query: Tensor, key: Tensor, value: Tensor,
               terms: LogitTerms) -> Tensor:
        return attend_overlapped(kernel, query, key, value, terms, self._halo.split, self._group)

    def _exchanged(self, x: Tensor) -> Tensor:
        """Return the rows of ``x``, of any process, that the halo's graph needs."""
        halo = self._halo
        x = exchanged(x, halo.send, halo.send_sizes, halo.receive_sizes, self._group)
        return x if halo.place is None else x.index_select(0, halo.place)


class Halo(NamedTuple):
    """Nodes that each process sends to every other process."""

    graph: BipartiteGraph | None  # from the received nodes to own queries; None if all are received
    send: Tensor  # own nodes to send, in the order of the receiving processes, int64
    send_sizes: list[int]
    receive_sizes: list[int]
    place: Tensor | None  # index of each key among the received nodes; None if in the same order
    split: Split | None = None  # the same for own and other nodes apart; None if it does not pay
