"""Set operations on the sorted rows of two graphs, in one pass."""

from __future__ import annotations

from graphattn._jit import jit


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
