"""Division of the rows of a graph into work items, which threads claim one by one.

A work item is a range of rows of one head and segment, all with about as many edges. Threads may
differ in speed or not start at all, so between two phases they wait for items, not for threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import types
from torch import Tensor

from graphattn._jit import give_way_symbol
from graphattn._threads import start_of_threads
from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.rows import whole_vectors
from graphattn.ops.cpu.simd import LANES, atomic_add, load_acquire

GRAIN = 1 << 16  # number of multiplications from which on one more thread saves time
PART = 1 << 20  # the same for one more part with its own gradients of keys
# Work items of a thread, if a loop copies all keys of an item into the cache. At 1 % of 4,096 x
# 4,096 pairs, 16 took a tenth longer.
ITEMS_WITH_CHUNKS = 4
_NO_PERM = np.empty(0, np.int32)


class Edges(NamedTuple):
    """The edges of a graph, grouped into rows: by query, or by key."""

    indptr: np.ndarray  # where the edges of each row begin
    column: np.ndarray  # the node at the other end of each edge
    perm: np.ndarray  # in the order by key: the place of each edge in the order by query
    row_ptr: np.ndarray  # where the rows of each segment begin
    column_ptr: np.ndarray  # where the columns of each segment begin

    @classmethod
    def by_query(cls, given) -> Edges:
        # given: arguments of an operator, among them registration.GRAPH
        return cls(given.indptr.numpy(), given.edge_key.contiguous().numpy(), _NO_PERM,
                   given.query_ptr.numpy(), given.key_ptr.numpy())

    @classmethod
    def of_rows(cls, indptr: Tensor, column: Tensor, perm: Tensor | None = None) -> Edges:
        """Return the edges as a single segment, for loops over ``[heads, nodes, channels]``."""
        # The values of a head are close together there, so loops need no segments.
        whole = np.array([0, indptr.numel() - 1])
        perm = _NO_PERM if perm is None else perm.numpy()
        return cls(indptr.numpy(), column.contiguous().numpy(), perm, whole, whole)


def run(kernel, edges: Edges, shape: tuple[int, int], *arguments, num_phases: int = 1,
        items: np.ndarray | None = None) -> None:
    """Run ``kernel(items, progress, *arguments, edges)``, made by ``in_threads``, in several
    threads."""
    # shape: number of heads, and of multiplications for each edge and head
    items = cut(edges, shape) if items is None else items
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in arguments]
    # claimed and finished items of each phase, a pass over all items; next_item claims
    progress = np.zeros((num_phases, 2), np.int64)
    num_threads = min(torch.get_num_threads(), worthwhile_parts(edges, shape, GRAIN),
                      max(len(items), 1))
    kernel(start_of_threads(), num_threads, items, progress, *arrays, edges)


def cut(edges: Edges, shape: tuple[int, int], items_per_thread: int = 16) -> np.ndarray:
    """Divide the edges of all heads into work items with about equal numbers of edges."""
    num_threads = min(torch.get_num_threads(), worthwhile_parts(edges, shape, GRAIN))
    num_parts = 1 if num_threads == 1 else items_per_thread * num_threads
    # int64 [num_items, 5]: the head, the first row, the row after the last, the segment, and
    # whether an earlier item has the same head and segment
    return cut_into_items(edges.indptr, edges.row_ptr, shape[0], num_parts)


def worthwhile_parts(edges: Edges, shape: tuple[int, int], size: int) -> int:
    """Return the number of parts of about ``size`` multiplications, whatever the number of
    threads."""
    heads, products = shape
    return 1 + int(edges.indptr[-1]) * heads * products // size


@jit
def cut_into_items(indptr, row_ptr, heads, num_parts):
    """Return work items as :func:`cut` does, also cut at the end of each head and segment."""
    num_segments = len(row_ptr) - 1
    items = np.empty((num_segments * heads + num_parts - 1, 5), np.int64)
    num_edges, end_item, done, part = indptr[-1] * heads, 0, 0, 1
    for segment in range(num_segments):
        begin, end = row_ptr[segment], row_ptr[segment + 1]
        size = indptr[end] - indptr[begin]
        for head in range(heads):
            first = begin
            while part < num_parts and num_edges * part // num_parts < done + size:
                rest = num_edges * part // num_parts - done
                cut = begin + np.searchsorted(indptr[begin:end + 1], indptr[begin] + rest)
                if cut > first:
                    _put_item(items, end_item, head, first, cut, segment, first > begin)
                    end_item += 1
                first, part = cut, part + 1
            _put_item(items, end_item, head, first, end, segment, first > begin)
            end_item, done = end_item + 1, done + size
    return items[:end_item]


@jit_inline
def _put_item(items, item, head, first, last, segment, is_shared):
    # One by one, because numba compiles the assignment of a tuple to code that takes ten times as
    # long.
    items[item, 0], items[item, 1], items[item, 2] = head, first, last
    items[item, 3], items[item, 4] = segment, int(is_shared)


# ``progress`` has two counters for each phase: the work items that are claimed, and the work items
# that are finished.


@jit_inline
def next_item(progress, phase):
    """Claim the next work item of a phase; ``len(items)`` or more means that none is left."""
    return atomic_add(progress, 2 * phase)


@jit_inline
def finish_and_next_item(progress, phase):
    atomic_add(progress, 2 * phase + 1)
    return next_item(progress, phase)


@jit_inline
def wait_for_all(items, progress, phase):
    while load_acquire(progress, 2 * phase + 1) < len(items):
        give_way()


give_way = types.ExternalFunction(give_way_symbol(), types.int32())


@jit
def max_rows(items):
    most = 0
    for item in range(len(items)):
        most = max(most, items[item, 2] - items[item, 1])
    return most


@jit
def max_row_length(indptr):
    """Return the size of a buffer for the longest row, in whole SIMD vectors and one more."""
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return whole_vectors(longest) + LANES
