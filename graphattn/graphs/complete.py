"""Graphs of all pairs, whose edges are listed only when they are read."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._tensors import host_copy, index_dtype
from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import Segments


class CompleteGraph(BipartiteGraph):
    """Graph in which each query attends to all keys of its segment.

    The edges are listed when they are first read, because dense attention needs no list of edges.
    Copies of this graph, and graphs that its methods return, are plain :class:`BipartiteGraph`
    objects.

    Args:
        segments (Segments): The segments of queries and keys.
    """

    is_listed = False

    def __init__(self, segments: Segments):
        lengths = [ptr.diff() for ptr in segments.ptrs]
        degree = torch.repeat_interleave(lengths[1], lengths[0])
        self._indptr = F.pad(degree.cumsum(0), (1, 0))
        self._num_keys, self._segments = int(host_copy(segments.key_ptr)[-1]), segments
        self._edge_prob = self._csc = self._block_mask = self._versions = None
        self._is_reordered = False

    @cached_property
    def _key(self) -> Tensor:
        """The key of each edge, ``[num_edges]``, in the narrowest dtype."""
        bounds = host_copy(self._segments.key_ptr).tolist()
        num_queries = host_copy(self._segments.query_ptr).diff().tolist()
        rows = [torch.arange(first, last, device=self.device).repeat(number)
                for first, last, number in zip(bounds, bounds[1:], num_queries)]
        return torch.cat(rows).to(index_dtype(self._num_keys))

    @property
    def num_edges(self) -> int:
        """Number of edges: all (query, key) pairs inside the segments."""
        return self._segments.num_pairs

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self._indptr.device

    @property
    def nbytes(self) -> int:
        """Number of bytes of the graph. Until the edges are listed, only the row pointer is
        counted."""
        return super().nbytes if '_key' in vars(self) else self._indptr.nbytes

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        no_edges = torch.empty(2, 0, dtype=torch.long)
        return BipartiteGraph, (no_edges, 0), self.__getstate__()


register_as_tensors(CompleteGraph)
