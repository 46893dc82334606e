"""Receptive fields: the number of keys that reach a query, hop by hop."""

from __future__ import annotations

import numpy as np
from tqdm import tqdm

from analysis.checks import check_count
from analysis.graphs import GraphLike
from analysis.walk import square_graph

_ALL_QUERIES_UP_TO = 8192
_SAMPLED_QUERIES = 512
_BYTES_AT_ONCE = 2**26


def receptive_field(
    graph: GraphLike, *, hops: int, queries: int | None = None, queries_seed: int = 0,
) -> np.ndarray:
    """Count the keys that reach a query within 0, 1, ... hops, exactly.

    A query reaches itself in 0 hops, because diffusion starts from its own value. The sets of
    queries are propagated as bits from queries to keys, so a hop moves O(edges x queries / 8)
    bytes.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        hops: Number of hops.
        queries: Number of randomly drawn queries to follow. If omitted, all queries are followed up
            to 8,192 tokens, and 512 queries beyond.
        queries_seed: Seed of the drawn queries.

    Returns:
        int64 array ``[hops + 1, queries]``.
    """
    check_count('hops', hops)
    graph = square_graph(graph)
    n = graph.num_queries
    if queries is None:
        queries = n if n <= _ALL_QUERIES_UP_TO else _SAMPLED_QUERIES
    check_count('queries', queries)
    check_count('queries_seed', queries_seed, at_least=0)
    queries = min(queries, n)
    source = np.sort(np.random.default_rng(queries_seed).choice(n, queries, replace=False))

    reached_by = np.zeros((n, -(-queries // 8)), dtype=np.uint8)
    number = np.arange(queries)
    reached_by[source, number // 8] = 128 >> number % 8
    pointer, query, _ = (part.cpu().numpy() for part in graph.csc)
    field = [_count_bits(reached_by)[:queries]]
    for _ in tqdm(range(hops), desc='receptive fields', unit='hop', delay=2, disable=None):
        if (field[-1] < n).any():
            reached_by = _one_hop(reached_by, pointer, query)
        field.append(_count_bits(reached_by)[:queries])
    return np.stack(field)


def _one_hop(reached_by: np.ndarray, pointer: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Extend the sets of queries that the keys have reached by one hop.

    A set is a row of ``reached_by``: bit q is set if the key reaches query q.

    Args:
        reached_by: The set of each key, uint8 ``[num_keys, bytes]``.
        pointer: The first edge of each key in ``query``, ``[num_keys + 1]``.
        query: The queries that attend to each key, one key after the other.
    """
    after = reached_by.copy()
    edges_at_once = max(_BYTES_AT_ONCE // reached_by.shape[1], 1)
    attended = np.flatnonzero(np.diff(pointer))  # reduceat does not support empty segments
    begin, end = pointer[attended], pointer[attended + 1]
    first = 0
    while first < len(attended):
        last = max(np.searchsorted(end, begin[first] + edges_at_once, side='right'), first + 1)
        edges = slice(begin[first], end[last - 1])
        gathered = np.bitwise_or.reduceat(reached_by[query[edges]],
                                          begin[first:last] - begin[first], axis=0)
        after[attended[first:last]] |= gathered
        first = last
    return after


def _count_bits(bits: np.ndarray) -> np.ndarray:
    """Return in how many rows each bit is set, int64 ``[8 * columns]``, for ``bits``, uint8
    ``[rows, columns]``."""
    # the largest number of rows whose sum fits into a byte; numpy adds bytes fastest
    most = np.iinfo(np.uint8).max
    return sum(np.unpackbits(bits[first:first + most], axis=1).sum(axis=0, dtype=np.uint8)
               .astype(np.int64) for first in range(0, len(bits), most))
