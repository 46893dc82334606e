"""Counting sort of edges into the rows of a graph."""

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
