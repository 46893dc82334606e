"""Gradients of keys, accumulated by several work items of one segment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.edges import Edges
from graphattn.ops.cpu.rows import node_rows
from graphattn.ops.cpu.schedule import PART, cut_into_items, worthwhile_parts
from graphattn.ops.pages import new_rows


class KeyGrads(NamedTuple):
    """Gradients of keys and the workspaces in which items accumulate them. For each segment and
    head of the keys, the first item writes to the gradients and each later item to rows of its own,
    which are added last and in order. Results have the same bits for any number and speed of
    threads, because items depend on the problem only."""

    grads: list[Tensor]  # [num_keys, num_kv_heads, channels]
    shared: list[Tensor]  # [rows, channels]
    items: np.ndarray  # the last column is where an item's own rows begin, or -1
    key_ptr: np.ndarray
    queries_per_key: int  # query heads per key head

    @classmethod
    def of(cls, edges: Edges, shape: tuple[int, int], inputs: list[Tensor],
           dtype: torch.dtype) -> KeyGrads:
        """Allocate the gradients of ``inputs``, ``[num_keys, num_kv_heads, channels]`` each."""
        items = cut_into_items(edges.indptr, edges.row_ptr, shape[0], _num_parts(edges, shape))
        queries_per_key = shape[0] // inputs[0].size(1)
        items[:, 4] |= items[:, 0] % queries_per_key > 0  # another head came first
        num_keys = np.where(items[:, 4] == 1, np.diff(edges.column_ptr)[items[:, 3]], 0)
        ends = num_keys.cumsum()
        items[:, 4] = np.where(items[:, 4] == 1, ends - num_keys, -1)
        grads = [new_rows(*x.shape, dtype=dtype) for x in inputs]
        shared = [new_rows(int(num_keys.sum()), grad.size(2), dtype=dtype) for grad in grads]
        return cls(grads, shared, items, edges.column_ptr, queries_per_key)

    def targets(self) -> list[np.ndarray | Tensor]:
        """Return the arrays that kernels write to."""
        return [*node_rows(self.grads[0].dtype, *self.grads), *self.shared]

    def sums(self) -> list[Tensor]:
        """Return the gradients, once all items are done."""
        for head, _, _, segment, row in self.items[self.items[:, 4] >= 0].tolist():
            first, last = self.key_ptr[segment:segment + 2].tolist()
            for grad, shared in zip(self.grads, self.shared):
                grad[first:last, head // self.queries_per_key] += shared[row:row + last - first]
        return self.grads


def _num_parts(edges: Edges, shape: tuple[int, int]) -> int:
    """Return the number of parts that edges are cut into, besides heads and segments: four, or
    parts of ``_EDGES_PER_KEY`` edges for each key. An item writes the gradients of all its keys, so
    many parts are slow: 51 parts of 20 % of 4,096 x 4,096 pairs, with 4 heads of 32, took 4 to 9 %
    longer than 12."""
    edges_per_key = int(edges.indptr[-1]) * shape[0] // max(int(edges.column_ptr[-1]), 1)
    most = max(4, min(64, edges_per_key // _EDGES_PER_KEY))
    return min(worthwhile_parts(edges, shape, PART), most)


_EDGES_PER_KEY = 256
