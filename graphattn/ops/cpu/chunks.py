"""Keys of one head, chunk by chunk in the cache."""

from __future__ import annotations

import sys

import numpy as np

from graphattn._jit import madvise
from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.rows import copy_row, prefetch_row
from graphattn.ops.pages import HUGE

AHEAD = 4  # rows; the machine sees the next one coming only where rows follow one another

# Key, value and their gradients of one head are copied side by side before the edges of a chunk are
# followed: an edge reads and writes all four, and many edges share a key. In the tensors that they
# come from, other heads lie between them, at a distance for which the cache has few places.


if sys.platform == 'linux':
    @jit_inline
    def ask_for_huge_pages(space):
        """Pages of 2 MiB for a large array, as numpy asks outside compiled loops: rows anywhere in
        it then have a place in the table of pages."""
        begin = (space.ctypes.data + 4095) // 4096 * 4096
        size = space.ctypes.data + space.nbytes - begin
        if size >= HUGE:
            madvise(begin, np.uint64(size), np.int32(14))  # MADV_HUGEPAGE
else:
    @jit_inline
    def ask_for_huge_pages(space):
        """Nothing, where there are none to be asked for."""


@jit_inline
def aligned(num_rows, width, like):
    """Return an array that begins at a line of the cache: vectors on two lines take twice as
    long."""
    space = np.empty(num_rows * width + 64, like.dtype)
    ask_for_huge_pages(space)
    skip = -space.ctypes.data % 64 // space.itemsize
    return space[skip:skip + num_rows * width].reshape(num_rows, width)


@jit_inline
def odd_lines(channels, like):
    """Return the width of rows of ``channels`` values that are read and written in turn: an odd
    number of lines of the cache. A load from 4,096 bytes, or a multiple of them, behind a value
    that was just stored waits for the store; rows of 512 bytes have that distance from every
    eighth."""
    line = 64 // like.itemsize
    return ((channels + line - 1) // line // 2 * 2 + 1) * line


@jit
def gather(rows, shift, x, low, head, heads):
    """Copy one head of ``x`` from ``low`` on to the columns from ``shift`` on."""
    for j in range(len(rows)):
        row = (low + j) * heads + head
        prefetch_row(x, row + 4 * AHEAD * heads)
        copy_row(rows, j, shift, x, row, 0, x.shape[1])


@jit
def put(x, rows, shift, low, head, heads):
    """Reverse ``gather``."""
    for j in range(len(rows)):
        row = (low + j) * heads + head
        prefetch_row(x, row + 4 * AHEAD * heads)
        copy_row(x, row, 0, rows, j, shift, x.shape[1])


@jit_inline
def clear(rows, shift):
    """Zero the columns from ``shift`` on."""
    for j in range(rows.shape[0]):
        for c in range(shift, rows.shape[1]):
            rows[j, c] = 0


@jit
def keys_per_chunk(channels, edges, segment):
    """Return how many keys of a segment are copied at once: as many as the cache holds, of
    ``channels`` values each, or more if rows have few edges: enough for about ``_EDGES_PER_VISIT``
    edges of each row. Sums have the order of chunks, so these are the same for all items of a
    segment."""
    first_row, last_row = edges.row_ptr[segment], edges.row_ptr[segment + 1]
    num_keys = edges.column_ptr[segment + 1] - edges.column_ptr[segment]
    num_edges = edges.indptr[last_row] - edges.indptr[first_row]
    worth_it = num_keys * _EDGES_PER_VISIT * (last_row - first_row) // max(num_edges, 1)
    return max(1, min(num_keys, max(_CHUNK // max(channels, 1), worth_it)))


_CHUNK = 1 << 18  # numbers, 1 MiB of float32
_EDGES_PER_VISIT = 16


@jit_inline
def exceeds_cache(rows):
    """Return whether a chunk is as large as few edges make it worth."""
    return rows.size > _CHUNK


@jit_inline
def prefetch_keys(rows, low, edge_key, first, last):
    """Ask for the rows of a query's keys ahead of their use, where they lie out of the cache."""
    for e in range(first, min(last, first + _EDGES_PER_VISIT)):
        prefetch_row(rows, np.int64(edge_key[e]) - low)


@jit
def max_chunk(items, channels, edges):
    """Return the most keys in a chunk of any item."""
    largest = 0
    for item in range(len(items)):
        largest = max(largest, keys_per_chunk(channels, edges, items[item, 3]))
    return largest


@jit_inline
def first_from(up, last_key, edge_key, first, last):
    """Return the first of a row's edges whose key is not below ``up``."""
    if up == last_key:
        return last
    while first < last and edge_key[first] < up:
        first += 1
    return first
