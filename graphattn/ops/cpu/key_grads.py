"""Gradients of keys to which several work items contribute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.rows import new_rows, node_rows
from graphattn.ops.cpu.schedule import PART, Edges, cut_into_items, worthwhile_parts


class KeyGrads(NamedTuple):
    """Gradients of keys, or of keys and values, that several work items sum."""

    # The first work item of each segment and head of keys writes to ``grads``, each later one to
    # its own rows of ``shared``, which sums() adds in a fixed order. Items do not depend on the
    # number of threads, so results do not either, bit for bit.
    grads: list[Tensor]  # [num_keys, num_kv_heads, channels] each
    shared: list[Tensor]  # workspaces, [rows, channels] each
    items: np.ndarray  # work items; the last column is the first row in the workspace, or -1
    key_ptr: np.ndarray
    queries_per_key: int  # number of heads of queries that share a head of keys

    @classmethod
    def of(cls, edges: Edges, shape: tuple[int, int], inputs: list[Tensor],  # edges by query
           dtype: torch.dtype) -> KeyGrads:
        """Return uninitialised gradients of ``inputs``, with work items and workspaces."""
        items = cut_into_items(edges.indptr, edges.row_ptr, shape[0], _num_parts(edges, shape))
        queries_per_key = shape[0] // inputs[0].size(1)
        # An earlier head of queries already writes to the gradients of the same head of keys.
        items[:, 4] |= items[:, 0] % queries_per_key > 0
        num_keys = np.where(items[:, 4] == 1, np.diff(edges.column_ptr)[items[:, 3]], 0)
        ends = num_keys.cumsum()
        items[:, 4] = np.where(items[:, 4] == 1, ends - num_keys, -1)
        grads = [new_rows(*x.shape, dtype=dtype) for x in inputs]
        shared = [new_rows(int(num_keys.sum()), grad.size(2), dtype=dtype) for grad in grads]
        return cls(grads, shared, items, edges.column_ptr, queries_per_key)

    def targets(self) -> list[np.ndarray | Tensor]:
        """Return the arrays that loops write to: the gradients, and then the workspaces."""
        return [*node_rows(self.grads[0].dtype, *self.grads), *self.shared]

    def sums(self) -> list[Tensor]:
        """Add the workspaces to the gradients, once, after all work items are done."""
        for head, _, _, segment, row in self.items[self.items[:, 4] >= 0].tolist():
            first, last = self.key_ptr[segment:segment + 2].tolist()
            for grad, shared in zip(self.grads, self.shared):
                grad[first:last, head // self.queries_per_key] += shared[row:row + last - first]
        return self.grads


def _num_parts(edges: Edges, shape: tuple[int, int]) -> int:
    edges_per_key = int(edges.indptr[-1]) * shape[0] // max(int(edges.column_ptr[-1]), 1)
    # A part writes the gradients of all its keys, so many parts are slow: for 20 % of 4,096 x 4,096
    # pairs and 4 heads of 32 channels, 51 parts took 4 to 9 % longer than 12.
    most = max(4, min(64, edges_per_key // _EDGES_PER_KEY))
    return min(worthwhile_parts(edges, shape, PART), most)


_EDGES_PER_KEY = 256
