"""The part of a batch that one of several processes holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    """A range of the tokens of a batch, and a way to the other processes, which hold the rest.

    Layers, models and sources take it in the place of ``ptr``; the graph then has the rows of the
    shard's queries alone, and all keys of the batch.

    Args:
        ptr (Tensor): Where each sequence of the whole batch begins, int64 ``[num_sequences + 1]``.
        start (int): The first token of this process.
        stop (int): Behind its last one.
    """

    def __init__(self, ptr: Tensor, start: int, stop: int):
        self.ptr, self.start, self.stop = ptr, start, stop
        self.lengths = host_copy(ptr).diff().tolist()
        self.num_tokens = sum(self.lengths)  # of all processes
        self.own_ptr = ptr.clamp(start, stop) - start

    @property
    def num_own(self) -> int:
        """Tokens of this process."""
        return self.stop - self.start

    def spans(self) -> list[tuple[int, int]]:
        """Return begin and end, within the sequence, of the own tokens of each sequence."""
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
        sends gradients back and adds them."""

    @abstractmethod
    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        """Raise a ValueError in every process unless the graph of each has the rows of its own
        queries, of all heads or of each."""

    @abstractmethod
    def place(self, attention: EdgeAttention, key: Tensor, graph: BipartiteGraph,
              heads: int | None, teleport: Tensor | None) -> Placement:
        """Return where the keys of all processes are, of which each gives its own.

        Args:
            attention (EdgeAttention): What attends.
            key (Tensor): Own keys.
            graph (BipartiteGraph): Of own queries and all keys.
            heads (int, optional): How many heads own a graph each; all share one if omitted.
            teleport (Tensor, optional): Instead of that of ``attention``.

        Raises:
            ValueError: It cannot be taken along such a graph.
        """

    def attended(self, attention: EdgeAttention) -> None:
        """Take notice that own queries have attended, hooks and all."""
        return


def check_edges(graph: BipartiteGraph) -> None:
    """Raise a TypeError for a soft mask, or anything else that has no rows of its own."""
    if not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'graph' must be a BipartiteGraph, with the rows of the tokens that are "
                        f"here (got {type(graph).__name__}); a learned mask gives one once it is "
                        f"frozen, by freeze()")
