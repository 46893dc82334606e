"""Loops over the rows of graphs: counting sort, set operations, and rows of key ranges."""

from __future__ import annotations

import numpy as np

from graphattn._jit import jit


@jit()
def sort_into_rows(edge_index, num_keys, indptr, key, perm):
    """Kernel: sort edges by query and then by key, by counting; return (are valid, are
    reordered)."""
    # edge_index: keys over queries. indptr: zeros. key, perm: receive the key and the original
    # index of each sorted edge; incomplete if the edges are not valid (out of range, duplicates).
    num_edges, num_queries = edge_index.shape[1], len(indptr) - 1
    end_of_key = np.zeros(num_keys + 1, np.int64)
    is_reordered, last_i, last_j = False, np.int64(-1), np.int64(-1)
    for e in range(num_edges):
        j, i = edge_index[0, e], edge_index[1, e]
        if j < 0 or j >= num_keys or i < 0 or i >= num_queries:
            return False, False
        end_of_key[j + 1] += 1
        indptr[i + 1] += 1
        is_reordered |= i < last_i or (i == last_i and j <= last_j)
        last_i, last_j = i, j
    for i in range(num_queries):
        indptr[i + 1] += indptr[i]
    if not is_reordered:
        for e in range(num_edges):
            key[e], perm[e] = edge_index[0, e], e
        return True, False
    for j in range(num_keys):
        end_of_key[j + 1] += end_of_key[j]
    by_key = np.empty(num_edges, np.int64)
    for e in range(num_edges):
        j = edge_index[0, e]
        by_key[end_of_key[j]] = e
        end_of_key[j] += 1
    end_of_row = indptr[:-1].copy()
    for e in by_key:
        j, i = edge_index[0, e], edge_index[1, e]
        at = end_of_row[i]
        if at > indptr[i] and key[at - 1] == j:
            return False, False
        key[at], perm[at] = j, e
        end_of_row[i] += 1
    return True, True


@jit()
def merge_rows(indptr, key, other_begin, other_end, other_key, merged_indptr, merged_key):
    """Kernel: merge the edges of two graphs, each edge once, and return the number of merged
    edges."""
    # Query i has the keys key[indptr[i]:indptr[i + 1]] and other_key[other_begin[i]:other_end[i]],
    # both ascending, as those of the result do. merged_key has room for the edges of both.
    end = 0
    for i in range(len(indptr) - 1):
        merged_indptr[i] = end
        e, last = indptr[i], indptr[i + 1]
        f, other_last = other_begin[i], other_end[i]
        while e < last and f < other_last:
            j, other_j = key[e], other_key[f]
            merged_key[end] = min(j, other_j)
            e, f, end = e + int(j <= other_j), f + int(other_j <= j), end + 1
        while e < last:
            merged_key[end] = key[e]
            e, end = e + 1, end + 1
        while f < other_last:
            merged_key[end] = other_key[f]
            f, end = f + 1, end + 1
    merged_indptr[len(indptr) - 1] = end
    return end


@jit()
def find_in_rows(indptr, key, other_indptr, other_key, is_found):
    """Kernel: set ``is_found[e]`` to whether another graph also has edge e."""
    # In both graphs, keys ascend within each row.
    for i in range(len(indptr) - 1):
        f, other_last = other_indptr[i], other_indptr[i + 1]
        for e in range(indptr[i], indptr[i + 1]):
            while f < other_last and other_key[f] < key[e]:
                f += 1
            is_found[e] = f < other_last and other_key[f] == key[e]


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
