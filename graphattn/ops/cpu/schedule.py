"""Schedules: rows cut into work items with equal numbers of edges, which threads claim one by one.

Threads may differ in speed, and fewer may start than requested, so each claims the next item when
it is done. A kernel of several phases waits for the items of the previous phase, not for threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import types
from torch import Tensor

from graphattn._jit import give_way_symbol
from graphattn._threads import start_of_threads
from graphattn.ops.cpu.edges import Edges
from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.rows import whole_vectors
from graphattn.ops.cpu.simd import LANES, atomic_add, load_acquire

GRAIN = 1 << 16  # multiplications that justify a thread
PART = 1 << 20  # multiplications that justify a part with gradients of its own


def run(kernel, edges: Edges, shape: tuple[int, int], *arguments, num_phases: int = 1,
        items: np.ndarray | None = None) -> None:
    """Run ``kernel(items, progress, *arguments, edges)`` in threads, fewer if there is little work.

    Args:
        kernel (Callable): Compiled by :func:`graphattn.ops.cpu.launch.in_threads`; claims items
            until there are none, in each phase.
        edges (Edges): The rows of the kernel.
        shape (tuple): The number of heads, and of multiplications for each edge of a head.
        arguments: Further arguments of the kernel; tensors are passed as arrays.
        num_phases (int): The number of passes over all items.
        items (ndarray, optional): Work items as returned by :func:`cut`; computed from all rows if
            omitted.
    """
    items = cut(edges, shape) if items is None else items
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in arguments]
    progress = np.zeros((num_phases, 2), np.int64)
    num_threads = min(_num_threads(edges, shape), max(len(items), 1))
    kernel(start_of_threads(), num_threads, items, progress, *arrays, edges)


def cut(edges: Edges, shape: tuple[int, int], items_per_thread: int = 16) -> np.ndarray:
    """Return work items, each of one head and segment, int64 ``[num_items, 5]``: head, first row,
    last row, segment, and whether an earlier item has the segment's columns too."""
    num_threads = _num_threads(edges, shape)
    num_parts = 1 if num_threads == 1 else items_per_thread * num_threads
    return cut_into_items(edges.indptr, edges.row_ptr, shape[0], num_parts)


def cut_for_chunks(edges: Edges, shape: tuple[int, int]) -> np.ndarray:
    """Return fewer items than :func:`cut`, for kernels that copy the keys of each item into the
    cache: at 1 % of 4,096 x 4,096 pairs, 16 items per thread took a tenth longer than 4."""
    return cut(edges, shape, items_per_thread=4)


def _num_threads(edges: Edges, shape: tuple[int, int]) -> int:
    return min(torch.get_num_threads(), worthwhile_parts(edges, shape, GRAIN))


def worthwhile_parts(edges: Edges, shape: tuple[int, int], size: int) -> int:
    """Return how many parts of ``size`` multiplications the work is divided into, independent of
    the number of threads."""
    heads, products = shape
    return 1 + int(edges.indptr[-1]) * heads * products // size


@jit
def cut_into_items(indptr, row_ptr, heads, num_parts):
    """Cut the sequence of segments and heads where they end, and into parts with equal numbers of
    edges."""
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
    # One by one: numba compiles tuple assignment to generic code, which takes ten times as long.
    items[item, 0], items[item, 1], items[item, 2] = head, first, last
    items[item, 3], items[item, 4] = segment, int(is_shared)


# ``progress`` counts the work items claimed and the work items finished, in each phase.


@jit_inline
def next_item(progress, phase):
    """Claim the next work item and return its number, at least ``len(items)`` if none is left."""
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
    """Return the size of a buffer for the longest row: whole vectors and one more."""
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return whole_vectors(longest) + LANES
