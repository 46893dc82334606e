"""Schedules: rows cut into work items of equally many edges, which threads claim one by one.

Threads may not be equally fast, nor as many as were asked for: each takes the next span when it is
done. A kernel whose phases need the results of the one before waits for spans, not for threads.
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

GRAIN = 1 << 16  # multiplications that are worth a thread
PART = 1 << 20  # multiplications that are worth a part whose gradients are added up later


def run(kernel, edges: Edges, shape: tuple[int, int], *arguments, num_phases: int = 1,
        spans: np.ndarray | None = None) -> None:
    """Run ``kernel(spans, progress, *arguments, edges)`` in as many threads as the work is worth.

    Args:
        kernel (Callable): Compiled by :func:`graphattn.ops.cpu.launch.in_threads`; claims spans
            until there are none, in each phase.
        edges (Edges): What its rows are.
        shape (tuple): How many heads, and multiplications for each edge of one.
        arguments: Its own; tensors are given as arrays.
        num_phases (int): How many times it goes over all spans.
        spans (ndarray, optional): As of :func:`cut`; of all rows if omitted.
    """
    spans = cut(edges, shape) if spans is None else spans
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in arguments]
    progress = np.zeros((num_phases, 2), np.int64)
    num_threads = min(_num_threads(edges, shape), max(len(spans), 1))
    kernel(start_of_threads(), num_threads, spans, progress, *arrays, edges)


def cut(edges: Edges, shape: tuple[int, int], spans_per_thread: int = 16) -> np.ndarray:
    """Return spans of one head and block, int64 ``[num_spans, 5]``: head, first row, last row,
    block, and whether the block's columns belong to an earlier span too."""
    num_threads = _num_threads(edges, shape)
    num_parts = 1 if num_threads == 1 else spans_per_thread * num_threads
    return cut_into_spans(edges.indptr, edges.row_ptr, shape[0], num_parts)


def cut_for_chunks(edges: Edges, shape: tuple[int, int]) -> np.ndarray:
    """Fewer spans, for kernels that copy the keys of each into the cache: at 1 % of 4,096 x 4,096
    pairs 16 per thread took a tenth longer than 4."""
    return cut(edges, shape, spans_per_thread=4)


def _num_threads(edges: Edges, shape: tuple[int, int]) -> int:
    return min(torch.get_num_threads(), worthwhile_parts(edges, shape, GRAIN))


def worthwhile_parts(edges: Edges, shape: tuple[int, int], size: int) -> int:
    """Return the number of parts of that size, in multiplications, that the work is worth dividing
    into, however many threads there are."""
    heads, products = shape
    return 1 + int(edges.indptr[-1]) * heads * products // size


@jit
def cut_into_spans(indptr, row_ptr, heads, num_parts):
    """Return blocks and heads in a row, cut where they end and into parts of equally many edges."""
    num_blocks = len(row_ptr) - 1
    spans = np.empty((num_blocks * heads + num_parts - 1, 5), np.int64)
    num_edges, end_span, done, part = indptr[-1] * heads, 0, 0, 1
    for block in range(num_blocks):
        begin, end = row_ptr[block], row_ptr[block + 1]
        size = indptr[end] - indptr[begin]
        for head in range(heads):
            first = begin
            while part < num_parts and num_edges * part // num_parts < done + size:
                rest = num_edges * part // num_parts - done
                cut = begin + np.searchsorted(indptr[begin:end + 1], indptr[begin] + rest)
                if cut > first:
                    _put_span(spans, end_span, head, first, cut, block, first > begin)
                    end_span += 1
                first, part = cut, part + 1
            _put_span(spans, end_span, head, first, end, block, first > begin)
            end_span, done = end_span + 1, done + size
    return spans[:end_span]


@jit_inline
def _put_span(spans, span, head, first, last, block, is_shared):
    # One by one: to assign a tuple is compiled to general code, which takes ten times as long.
    spans[span, 0], spans[span, 1], spans[span, 2] = head, first, last
    spans[span, 3], spans[span, 4] = block, int(is_shared)


# ``progress`` counts how many spans were claimed, and how many are finished, in each phase.


@jit_inline
def claim(progress, phase):
    """Return the number of a span that no thread has claimed, or one past them."""
    return atomic_add(progress, 2 * phase)


@jit_inline
def finish_and_claim(progress, phase):
    atomic_add(progress, 2 * phase + 1)
    return claim(progress, phase)


@jit_inline
def wait_for_all(spans, progress, phase):
    while load_acquire(progress, 2 * phase + 1) < len(spans):
        give_way()


give_way = types.ExternalFunction(give_way_symbol(), types.int32())


@jit
def most_rows(spans):
    most = 0
    for span in range(len(spans)):
        most = max(most, spans[span, 2] - spans[span, 1])
    return most


@jit
def longest_row(indptr):
    """Return the most edges of a row, in whole vectors and one more."""
    longest = 0
    for i in range(len(indptr) - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return whole_vectors(longest) + LANES
