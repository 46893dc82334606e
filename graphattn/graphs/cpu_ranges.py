"""Rows of a graph whose queries have ranges of consecutive keys."""

from __future__ import annotations

from graphattn._jit import jit


@jit()
def put_ranges(begin, end, indptr, key, num_keys):
    """Kernel: write the CSR rows of a graph to ``indptr`` and ``key``, and return the number of
    edges."""
    # Query i has the keys begin[i, r] to end[i, r] - 1 for each range r, as far as these exist.
    # Keys ascend in each row, and a key in several ranges is written once.
    num_edges = 0
    for i in range(len(begin)):
        indptr[i] = num_edges
        first, last = _next_range(begin, end, i, 0, num_keys)
        while first < last:
            for j in range(first, last):
                key[num_edges + j - first] = j
            num_edges += last - first
            first, last = _next_range(begin, end, i, last, num_keys)
    indptr[len(begin)] = num_edges
    return num_edges


@jit(inline=True)
def _next_range(begin, end, i, low, num_keys):
    # The first range of keys of query i from key low on; num_keys twice if no key is left.
    first = last = num_keys
    for r in range(begin.shape[1]):
        own_first, own_last = max(begin[i, r], low), min(end[i, r], num_keys)
        if own_first < own_last and own_first < first:
            first, last = own_first, own_last
    return first, last
