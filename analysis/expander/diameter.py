"""Diameter and bipartiteness of a symmetric graph, from distances."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph
from tqdm import tqdm

# Up to this size the diameter is exact, with one search per node in the worst case.
_EXACT_NODES = 4096
# Searches in larger graphs: a double sweep needs two, and a graph with a central hub needs few
# more.
_SWEEPS = 16


def find_diameter(adjacency: sp.csr_array, degree: np.ndarray) -> tuple[int, bool]:
    r"""Return the diameter of a connected graph, or a lower bound of the diameter, and whether the
    returned number is exact.

    Each search from a node v bounds the eccentricity of every other node w from both sides,
    :math:`|e_v - d(v, w)| \le e_w \le e_v + d(v, w)`. The searches stop when no eccentricity can
    exceed the largest found (Takes and Kosters, "Determining the diameter of small world networks",
    2011). The second search starts at a node farthest from the first node, which makes the first
    two a double sweep.
    """
    n = degree.size
    lower, upper = np.zeros(n, dtype=np.int64), np.full(n, n - 1)
    is_searched = np.zeros(n, dtype=bool)
    node, diameter = int(degree.argmax()), 0
    searches = n if n <= _EXACT_NODES else _SWEEPS
    for search in tqdm(range(searches), desc='diameter', unit='search', leave=False, delay=3,
                       disable=None):
        distance = _distances(adjacency, node)
        eccentricity = int(distance.max())
        diameter = max(diameter, eccentricity)
        is_searched[node] = True
        np.maximum(lower, np.maximum(distance, eccentricity - distance), out=lower)
        np.minimum(upper, eccentricity + distance, out=upper)
        is_open = (upper > diameter) & ~is_searched
        if not is_open.any():
            return diameter, True
        candidates = np.flatnonzero(is_open)
        node = int(candidates[upper[candidates].argmax() if search % 2 == 0
                              else lower[candidates].argmin()])
    return diameter, False


def is_bipartite(adjacency: sp.csr_array) -> bool:
    """Return whether the component of node 0 is bipartite: whether every edge joins a node at an
    even distance from node 0 with a node at an odd distance."""
    parity = _distances(adjacency, 0) % 2
    row = np.repeat(np.arange(parity.size), np.diff(adjacency.indptr))
    reached = parity[row] >= 0
    return not (parity[row] == parity[adjacency.indices])[reached].any()


def _distances(adjacency: sp.csr_array, start: int) -> np.ndarray:
    """Return the distance from ``start`` to every node, int ``[n]``, by breadth-first search. The
    distance of an unreachable node is -1."""
    order, parent = csgraph.breadth_first_order(adjacency, start, return_predecessors=True)
    place = np.full(adjacency.shape[0], -1)
    place[order] = np.arange(order.size)
    # these places are sorted, so that the nodes of a level are a slice
    parent_place = place[parent[order[1:]]]
    distance = np.full(adjacency.shape[0], -1)
    first, last, level = 0, 1, 0
    while first < last:
        distance[order[first:last]] = level
        first, last = last, 1 + int(np.searchsorted(parent_place, last))
        level += 1
    return distance
