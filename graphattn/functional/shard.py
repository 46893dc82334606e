"""Shards, which are the parts of a batch that several processes compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from graphattn._tensors import host_copy
from graphattn.functional.drive import LOCAL, Placement, Teleport
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import segment_of


class Shard(Placement, ABC):
    """A range of the tokens of a batch, and communication with the processes that compute the other
    tokens.

    Layers, models and sources take a shard as ``placement``, and ``ptr`` then marks the sequences
    of this process's tokens (:attr:`own_ptr`). The graph of a shard has the queries of this process
    and all keys of the batch. :meth:`place` gives each layer a placement of its own.

    Args:
        ptr (Tensor): Where each sequence of the whole batch begins, int64 ``[num_sequences + 1]``.
        start (int): The first token of this process.
        stop (int): The token after the last token of this process.
    """

    def __init__(self, ptr: Tensor, start: int, stop: int):
        super().__init__()
        self.ptr, self.start, self.stop = ptr, start, stop
        self.lengths = host_copy(ptr).diff().tolist()
        self.num_tokens = sum(self.lengths)  # in all processes
        self.own_ptr = ptr.clamp(start, stop) - start

    @property
    def num_own(self) -> int:
        """Number of tokens of this process."""
        return self.stop - self.start

    def spans(self) -> list[tuple[int, int]]:
        """Return a pair (begin, end) for each sequence: the positions of its tokens that belong to
        this process."""
        begin, end = ((edge - self.ptr[:-1]).clamp(min=0).minimum(self.ptr.diff()).tolist()
                      for edge in (self.start, self.stop))
        return [*zip(begin, end)]

    def positions(self) -> Tensor:
        """Return the position of each token of this process in its sequence, int64
        ``[num_own]``."""
        token = torch.arange(self.start, self.stop, device=self.ptr.device)
        return token - self.ptr[:-1][segment_of(self.own_ptr)]

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """Return the tensors ``x`` ``[num_own, ...]`` of all processes as one tensor,
        ``[num_tokens, ...]``. The backward pass sums the gradients that all processes have for
        ``x``."""

    def built_from(self, graph: BipartiteGraph, cause: Hashable) -> None:
        """Record that every process builds its rows of ``graph`` from the same ``cause``, such as
        the patterns and the lengths of all sequences. The plan to exchange keys and values along
        this graph can then be used again for any graph of an equal cause."""
        return

    @abstractmethod
    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        """Raise a ValueError in every process unless the graph of each process has the queries of
        this process and all keys, once for all heads or once for each head."""

    @abstractmethod
    def place(self, layer: nn.Module, key: Tensor, graph: BipartiteGraph, heads: int | None, *,
              hops: int | float, teleport: Teleport, dropout_p: float) -> Placement:
        """Return the placement of the keys of all processes. Each process passes the keys of its
        own tokens.

        Args:
            layer (Module): The layer that computes attention.
            key (Tensor): Keys of the tokens of this process, ``[num_own, heads, channels]``.
            graph (BipartiteGraph): The edges from all keys to the queries of this process.
            heads (int, optional): Number of heads, if each head has its own graph; None if all
                heads share the graph.
            hops (int or float): Number of hops of the layer.
            teleport (float, sequence of float or Tensor): Share of its own value that a token
                keeps at each hop.
            dropout_p (float): Probability of zeroing a weight in this call.

        Raises:
            ValueError: The shard does not support this graph, these hops or dropout.
        """


def shard_of(placement: Placement) -> Shard | None:
    """Return the shard that a layer, model or source is called with, or None for LOCAL."""
    if placement is LOCAL:
        return None
    if not isinstance(placement, Shard):
        raise TypeError(f"'placement' must be a step of a cache or the shard of a process (got "
                        f"{type(placement).__name__}); omit 'placement' for whole sequences")
    return placement


def check_edges(graph: BipartiteGraph) -> None:
    """Raise a TypeError unless ``graph`` is a BipartiteGraph. A soft mask has no edges to divide
    over processes."""
    if not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'graph' must be a BipartiteGraph with the queries of this process (got "
                        f"{type(graph).__name__}); call freeze() of a learned mask, so that the "
                        f"mask returns a BipartiteGraph")
