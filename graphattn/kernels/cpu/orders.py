"""A graph in both orders, and a few heads of it at a time.

Heads lie apart in memory, ``[heads, nodes, channels]``, so that the values of one stay in the cache
while its edges are followed. A few go together, and what is as long as their edges serves the next
ones too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.kernels.cpu.edges import Edges
from graphattn.kernels.cpu.jit import jit
from graphattn.kernels.cpu.schedule import claim, run
from graphattn.kernels.operators.definition import accumulation_dtype

EDGES_AT_ONCE = 1 << 20  # of all heads that go together


class Orders(NamedTuple):
    """The edges by query and by key, the latter empty where no gradient is taken."""

    by_query: Edges
    by_key: Edges
    position: Tensor

    @classmethod
    def of(cls, indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor,
           position: Tensor) -> Orders:
        return cls(Edges.of_rows(indptr, edge_key), Edges.of_rows(key_indptr, edge_query, position),
                   position)

    def to_key_order(self, by_query: Tensor) -> Tensor:
        """Weights ``[heads, num_edges]`` in the order by key."""
        by_key = torch.empty_like(by_query, memory_format=torch.contiguous_format)
        run(_to_key_order, self.by_key, (len(by_query), 1), by_query.contiguous(), by_key)
        return by_key

    def to_query_order(self, by_key: Tensor, out: Tensor) -> None:
        """Puts what is in the order by key into ``out``, in that by query."""
        run(_to_query_order, self.by_key, (len(by_key), 1), by_key, out)

    def values_by_key(self, values: Tensor | None) -> Tensor | None:
        """``[num_edges, heads or 1]`` in the order by key."""
        return None if values is None else values.detach()[self.position]


def groups_of_heads(num_heads: int, num_edges: int) -> list[slice]:
    """Heads that share the workspace for edges."""
    size = min(num_heads, max(1, EDGES_AT_ONCE // max(num_edges, 1)))
    return [slice(first, min(first + size, num_heads)) for first in range(0, num_heads, size)]


def workspaces(groups: list[slice], nodes: list[Tensor], edges: list[Tensor] = ()) -> list[Tensor]:
    """Memory for the heads of a group: for those of each of ``nodes``, ``[nodes, heads,
    channels]``, and for a number on each of ``edges``."""
    heads, dtype = groups[0].stop, accumulation_dtype(nodes[0])
    return [x.new_empty(heads, len(x), *x.shape[2:], dtype=dtype) for x in (*nodes, *edges)]


def head_major(tensor: Tensor, heads: slice, workspace: Tensor) -> Tensor:
    """Some heads of ``[nodes, heads, channels]``, copied to ``[heads, nodes, channels]``."""
    own = tensor.detach()[:, heads].transpose(0, 1)
    return workspace[:len(own)].copy_(own)


@jit
def _to_key_order(spans, progress, by_query, by_key, edges):
    indptr, position = edges.indptr, edges.position
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        first, last = indptr[begin], indptr[end]
        source, target, row = by_query[head], by_key[head, first:last], position[first:last]
        for e in range(len(row)):
            target[e] = source[np.uint64(row[e])]  # unsigned: no test whether it is negative
        span = claim(progress, 0)


@jit
def _to_query_order(spans, progress, by_key, by_query, edges):
    indptr, position = edges.indptr, edges.position
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        first, last = indptr[begin], indptr[end]
        source, target, row = by_key[head, first:last], by_query[head], position[first:last]
        for e in range(len(row)):
            target[np.uint64(row[e])] = source[e]
        span = claim(progress, 0)
