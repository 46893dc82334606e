"""Graphs of all pairs, whose edges are listed only when they are read."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._tensors import index_dtype, is_traced, narrow, outside_transforms
from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import rows_of_ranges
from graphattn.graphs.segments import Segments


class CompleteGraph(BipartiteGraph):
    """Graph in which each query attends to all keys of its sequence (segment)."""

    def __init__(self, segments: Segments, *, is_listed: bool = False):
        num_queries, num_keys = map(sum, zip((0, 0), *segments.shapes))
        degree = torch.repeat_interleave(segments.key_ptr.diff(), segments.query_ptr.diff(),
                                         output_size=num_queries)
        self._indptr = F.pad(degree.cumsum(0), (1, 0))
        # A cached graph lists its edges at most once, so nbytes and the choice of a backend treat
        # them as listed.
        self._num_keys, self._segments, self.is_listed = num_keys, segments, is_listed
        self._edge_prob = self._csc = None
        self._is_reordered = False
        self._held = [] if is_traced(self._indptr) else self._with_versions()

    @cached_property
    def _key(self) -> Tensor:
        # Listed when first read, because dense attention does not need the edges.
        with outside_transforms():  # later callers may train with the graph
            key = self._list_keys()
        if not is_traced(key):
            self._held.append((key, key._version))
        return key

    def _list_keys(self) -> Tensor:
        of_query = self._segments.of_queries(self.num_queries)
        begin, end = (ptr[of_query] for ptr in (self._segments.key_ptr[:-1],
                                                self._segments.key_ptr[1:]))
        rows = rows_of_ranges(begin.unsqueeze(1), end.unsqueeze(1), self._num_keys)
        if rows is not None:
            return rows[1]
        first = torch.repeat_interleave(begin - self._indptr[:-1], end - begin,
                                        output_size=self.num_edges)
        key = first + torch.arange(self.num_edges, device=self.device)
        return narrow(key, self._num_keys)

    @property
    def num_edges(self) -> int:
        return self._segments.num_pairs

    @property
    def device(self) -> torch.device:
        return self._indptr.device

    @property
    def nbytes(self) -> int:
        if '_key' in vars(self):
            return super().nbytes
        itemsize = index_dtype(self._num_keys).itemsize
        # Before the edges are listed, the list only counts if the graph is cached.
        return self._indptr.nbytes + self.is_listed * itemsize * self.num_edges

    __reduce_ex__ = BipartiteGraph._reduce_to_plain


register_as_tensors(CompleteGraph)
