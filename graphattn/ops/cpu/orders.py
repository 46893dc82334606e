"""The edges of a graph in both orders, by query and by key, and workspaces for a slice of the
heads.

Values are copied into workspaces ``[heads, nodes, channels]``, so that those of one head stay in
the cache. Heads are computed in slices, which use the same workspaces one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.rows import new_rows
from graphattn.ops.cpu.schedule import Edges, next_item, run
from graphattn.ops.registration import accumulation_dtype

EDGES_AT_ONCE = 1 << 20  # summed over the heads of a slice


class Orders(NamedTuple):
    """The edges of a graph sorted by query, and sorted by key."""

    csr: Edges  # by query
    csc: Edges  # by key; empty if no gradient is needed
    perm: Tensor  # the place of each edge of csc in csr

    @classmethod
    def of(cls, given) -> Orders:
        # given: arguments of an operator, among them registration.BOTH_ORDERS
        by_key = Edges.of_rows(given.key_indptr, given.edge_query, given.perm)
        return cls(Edges.of_rows(given.indptr, given.edge_key), by_key, given.perm)

    def to_key_order(self, csr_values: Tensor) -> Tensor:  # [heads, num_edges]
        csc_values = torch.empty_like(csr_values, memory_format=torch.contiguous_format)
        run(_permute, self.csc, (len(csr_values), 1), csr_values.contiguous(), csc_values, True)
        return csc_values

    def to_query_order(self, csc_values: Tensor, out: Tensor) -> None:
        run(_permute, self.csc, (len(csc_values), 1), out, csc_values, False)

    def values_by_key(self, values: Tensor | None) -> Tensor | None:
        if values is None or values.stride(0) == 0:  # None, or one value for all edges
            return values
        return values.detach()[self.perm]


def groups_of_heads(num_heads: int, num_edges: int) -> list[slice]:
    """Divide the heads into slices of at most about a million edges, or of a single head."""
    size = min(num_heads, max(1, EDGES_AT_ONCE // max(num_edges, 1)))
    return [slice(first, min(first + size, num_heads)) for first in range(0, num_heads, size)]


def workspaces(groups: list[slice], nodes: list[Tensor], edges: list[Tensor] = ()) -> list[Tensor]:
    """Return uninitialised workspaces for the heads of one slice."""
    # groups: the largest slice first; nodes: [nodes, all heads, channels] each, workspaces [heads,
    # nodes, channels]; edges: [num_edges] each, workspaces [heads, num_edges]
    heads, dtype = groups[0].stop, accumulation_dtype(nodes[0])
    return [new_rows(heads, len(x), *x.shape[2:], dtype=dtype) for x in (*nodes, *edges)]


def head_major(tensor: Tensor, heads: slice, workspace: Tensor) -> Tensor:
    """Copy some heads of ``[nodes, heads, channels]`` into a workspace, as ``[heads, nodes,
    channels]``."""
    own = tensor.detach()[:, heads].transpose(0, 1)
    return workspace[:len(own)].copy_(own)


@in_threads
def _permute(items, progress, by_query, by_key, to_key, edges):
    # copies values between the two orders
    indptr, perm = edges.indptr, edges.perm
    item = next_item(progress, 0)
    while item < len(items):
        head, begin, end = items[item, 0], items[item, 1], items[item, 2]
        first, last = indptr[begin], indptr[end]
        csr, csc, row = by_query[head], by_key[head, first:last], perm[first:last]
        # Indices are unsigned, so that numba does not test whether they are negative.
        if to_key:
            for e in range(len(row)):
                csc[e] = csr[np.uint64(row[e])]
        else:
            for e in range(len(row)):
                csr[np.uint64(row[e])] = csc[e]
        item = next_item(progress, 0)
