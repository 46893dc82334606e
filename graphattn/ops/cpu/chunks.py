"""Copies of the keys of one head into the cache, one chunk of consecutive keys after the other."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn._jit import madvise
from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.rows import HUGE, copy_row, new_rows, node_rows, prefetch_row
from graphattn.ops.cpu.schedule import PART, Edges, cut_into_items, worthwhile_parts

AHEAD = 4  # rows that are prefetched, because the hardware prefetches only consecutive memory

# Before the edges of a chunk are processed, its keys, values and their gradients are copied side by
# side, because each edge reads and writes all four, and many edges share a key. In the original
# tensors, other heads lie in between, at a stride that maps to few sets of the cache.


if sys.platform == 'linux':
    @jit_inline
    def ask_for_huge_pages(space):
        """Request pages of 2 MiB for a large array, so that accesses to distant rows do not miss
        the TLB. numpy itself requests such pages, but not in compiled loops."""
        begin = (space.ctypes.data + 4095) // 4096 * 4096
        size = space.ctypes.data + space.nbytes - begin
        if size >= HUGE:
            madvise(begin, np.uint64(size), np.int32(14))  # MADV_HUGEPAGE
else:
    @jit_inline
    def ask_for_huge_pages(space):
        """Do nothing, because only Linux supports this request."""


@jit_inline
def aligned(num_rows, width, like):
    """Return an uninitialised array ``[num_rows, width]`` that is aligned to cache lines."""
    space = np.empty(num_rows * width + 64, like.dtype)
    space[num_rows * width:] = 0  # the last panel of tiles may go beyond the last row
    ask_for_huge_pages(space)
    # A vector that lies in two cache lines takes twice as long.
    skip = -space.ctypes.data % 64 // space.itemsize
    return space[skip:skip + num_rows * width].reshape(num_rows, width)


@jit_inline
def odd_lines(channels, like):
    """Return ``channels`` rounded up to rows of an odd number of cache lines."""
    # For rows that are read and written in turn: a load waits for an earlier store whose address
    # differs by a multiple of 4,096 bytes, with rows of 512 bytes at every eighth row.
    line = 64 // like.itemsize
    return ((channels + line - 1) // line // 2 * 2 + 1) * line


@jit
def gather(rows, shift, x, low, head, heads):  # x: [nodes * heads, channels]
    """Copy ``x[low:low + len(rows), head]`` into ``rows``, from column ``shift`` on."""
    for j in range(len(rows)):
        row = (low + j) * heads + head
        prefetch_row(x, row + 4 * AHEAD * heads)
        copy_row(rows, j, shift, x, row, 0, x.shape[1])


@jit
def put(x, rows, shift, low, head, heads):
    """Copy ``rows[:, shift:]`` into ``x[low:low + len(rows), head]``."""
    for j in range(len(rows)):
        row = (low + j) * heads + head
        prefetch_row(x, row + 4 * AHEAD * heads)
        copy_row(x, row, 0, rows, j, shift, x.shape[1])


@jit_inline
def clear(rows, shift):
    for j in range(rows.shape[0]):
        for c in range(shift, rows.shape[1]):
            rows[j, c] = 0


@jit
def keys_per_chunk(channels, edges, segment):
    """Return how many keys of a segment loops copy into the cache together, as a chunk."""
    first_row, last_row = edges.row_ptr[segment], edges.row_ptr[segment + 1]
    num_keys = edges.column_ptr[segment + 1] - edges.column_ptr[segment]
    num_edges = edges.indptr[last_row] - edges.indptr[first_row]
    # The chunk fits in the cache, or is larger so that a row has about 16 edges in it. It is the
    # same for all work items of a segment, because the order of sums depends on it.
    worth_it = num_keys * _EDGES_PER_VISIT * (last_row - first_row) // max(num_edges, 1)
    return max(1, min(num_keys, max(_CHUNK // max(channels, 1), worth_it)))


_CHUNK = 1 << 18  # values, 1 MiB of float32
_EDGES_PER_VISIT = 16


@jit_inline
def exceeds_cache(rows):
    # The copied keys are read again and again. Few edges per query make a chunk so large.
    return rows.size > _CHUNK


@jit_inline
def prefetch_keys(rows, low, edge_key, first, last):
    # at most 16 edges; ``rows`` is a copy of the keys from ``low`` on
    for e in range(first, min(last, first + _EDGES_PER_VISIT)):
        prefetch_row(rows, np.int64(edge_key[e]) - low)


@jit
def max_chunk(items, channels, edges):
    largest = 0
    for item in range(len(items)):
        largest = max(largest, keys_per_chunk(channels, edges, items[item, 3]))
    return largest


@jit_inline
def first_from(up, last_key, edge_key, first, last):
    """Return the first of the edges ``first:last`` whose key is at least ``up``, else ``last``."""
    if up == last_key:
        return last
    while first < last and edge_key[first] < up:
        first += 1
    return first


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
