"""Rows of keys and values that processes receive from one another."""

from __future__ import annotations

import numpy as np

from graphattn import BipartiteGraph


def rows_received(graph: BipartiteGraph, bounds: list[int]) -> np.ndarray:
    """Count the keys that each process needs for its edges and that another process stores.

    Args:
        graph: The graph, with as many keys as queries.
        bounds: The index of each process's first token, and then the number of tokens.

    Returns:
        int array ``[receiving process, sending process]``.
    """
    indptr, key = (part.numpy() for part in graph.csr)
    rows = np.zeros((len(bounds) - 1, len(bounds) - 1), dtype=np.int64)
    for process, (first, last) in enumerate(zip(bounds, bounds[1:])):
        needed = np.unique(key[indptr[first]:indptr[last]])
        owner = np.searchsorted(bounds[1:], needed, side='right')
        rows[process] = np.bincount(owner, minlength=len(rows))
        rows[process, process] = 0
    return rows
