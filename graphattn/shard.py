"""Shards: the part of a batch that one of several processes holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphattn._tensors import host_copy
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import segment_of

if TYPE_CHECKING:
    from graphattn.functional.drive import Placement
    from graphattn.layers import EdgeAttention


class Shard(ABC):
    """A range of the tokens of a batch, and communication with the processes that hold the rest.

    Layers, models and sources accept it instead of ``ptr``. The graph then has only the rows of the
    shard's queries, and all keys of the batch.

    Args:
        ptr (Tensor): Where each sequence of the whole batch begins, int64 ``[num_sequences + 1]``.
        start (int): The first token of this process.
        stop (int): The token after its last one.
    """

    def __init__(self, ptr: Tensor, start: int, stop: int):
        self.ptr, self.start, self.stop = ptr, start, stop
        self.lengths = host_copy(ptr).diff().tolist()
        self.num_tokens = sum(self.lengths)  # in all processes
        self.own_ptr = ptr.clamp(start, stop) - start

    @property
    def num_own(self) -> int:
        """Tokens of this process."""
        return self.stop - self.start

    def spans(self) -> list[tuple[int, int]]:
        """Return the range of own tokens within each sequence."""
        begin, end = ((edge - self.ptr[:-1]).clamp(min=0).minimum(self.ptr.diff()).tolist()
                      for edge in (self.start, self.stop))
        return [*zip(begin, end)]

    def positions(self) -> Tensor:
        """Return the position of each own token in its sequence, int64 ``[num_own]``."""
        token = torch.arange(self.start, self.stop, device=self.ptr.device)
        return token - self.ptr[:-1][segment_of(self.own_ptr)]

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """Gather ``[num_own, ...]`` of all processes as ``[num_tokens, ...]``. The backward pass
        sends gradients back and sums them."""

    def built_from(self, graph: BipartiteGraph, cause: Hashable) -> None:
        """Learn that every process builds its rows of a graph from the same ``cause``, such as the
        patterns and the lengths of sequences."""
        return

    @abstractmethod
    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        """Raise a ValueError in every process unless each graph has the rows of own queries, shared
        by all heads or for each head."""

    @abstractmethod
    def place(self, attention: EdgeAttention, key: Tensor, graph: BipartiteGraph,
              heads: int | None, teleport: Tensor | None) -> Placement:
        """Return the placement of the keys of all processes. Each process passes its own keys.

        Args:
            attention (EdgeAttention): The attention.
            key (Tensor): Own keys.
            graph (BipartiteGraph): The graph of own queries and all keys.
            heads (int, optional): Number of heads with graphs of their own; all heads share a graph
                if omitted.
            teleport (Tensor, optional): Replaces the teleport of ``attention``.

        Raises:
            ValueError: The attention does not support this graph.
        """

    def attended(self, attention: EdgeAttention) -> None:
        """Run after the attention of own queries and its hooks."""
        return


def check_edges(graph: BipartiteGraph) -> None:
    """Raise a TypeError for soft masks and other types without rows."""
    if not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'graph' must be a BipartiteGraph, with the rows of own tokens (got "
                        f"{type(graph).__name__}); a learned mask returns one once it is frozen, "
                        f"by freeze()")
