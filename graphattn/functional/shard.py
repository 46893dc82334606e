"""Shards, which are the parts of a batch that several processes compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from graphattn._tensors import host_copy
from graphattn.functional.drive import Placement, Teleport
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import segment_of


class Shard(Placement, ABC):
    """A range of the tokens of a batch, and communication with the processes of the other
    tokens."""

    # As placement of layers, models and sources: their ptr then marks the sequences of own tokens
    # (own_ptr). The graph has the queries of this process and all keys of the batch.
    def __init__(self, ptr: Tensor, start: int, stop: int):
        super().__init__()
        self.ptr, self.start, self.stop = ptr, start, stop
        self.lengths = host_copy(ptr).diff().tolist()
        self.num_tokens = sum(self.lengths)  # in all processes
        self.own_ptr = ptr.clamp(start, stop) - start

    @property
    def num_own(self) -> int:
        return self.stop - self.start

    def spans(self) -> list[tuple[int, int]]:
        """Begin and end of the tokens of this process in each sequence."""
        begin, end = ((edge - self.ptr[:-1]).clamp(min=0).minimum(self.ptr.diff()).tolist()
                      for edge in (self.start, self.stop))
        return [*zip(begin, end)]

    def positions(self) -> Tensor:
        """Return the position of each token of this process in its sequence."""
        token = torch.arange(self.start, self.stop, device=self.ptr.device)
        return token - self.ptr[:-1][segment_of(self.own_ptr)]

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """Return ``x`` of all processes, ``[num_tokens, ...]``; the backward pass sums all
        gradients."""

    def attended(self, layer: nn.Module) -> None:
        """Record that ``layer`` has computed attention, and that its hooks have run."""
        return

    def built_from(self, graph: BipartiteGraph, cause: Hashable) -> None:
        """Record that every process builds its rows of ``graph`` from the same ``cause``."""
        # A plan to exchange keys and values serves any graph of an equal cause again.
        return

    @abstractmethod
    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        """Raise in every process unless each graph has its own queries and all keys, or once per
        head."""

    @abstractmethod
    def place(self, layer: nn.Module, key: Tensor, graph: BipartiteGraph, heads: int | None, *,
              hops: int | float, teleport: Teleport, dropout_p: float) -> Placement:
        """Return the placement of the keys of all processes for ``layer``, given the keys of own
        tokens."""


def check_shard(placement: Placement) -> Shard:
    if not isinstance(placement, Shard):
        raise TypeError(f"'placement' must be a step of a cache or the shard of a process (got "
                        f"{type(placement).__name__}); omit 'placement' for whole sequences")
    return placement


def check_edges(graph: BipartiteGraph) -> None:
    """Raise unless ``graph`` is a BipartiteGraph: a soft mask has no edges to divide over
    processes."""
    if not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'graph' must be a BipartiteGraph with the queries of this process (got "
                        f"{type(graph).__name__}); call freeze() of a learned mask, so that the "
                        f"mask returns a BipartiteGraph")
