"""Cheap certificates that a graph has no Hamiltonian path."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import (
    connected_components,
    maximum_bipartite_matching,
    minimum_spanning_tree,
)

from analysis.result import TokenText


def _ends(links: sp.csr_array) -> str | None:
    for degree, what, end in ((links.sum(axis=0), 'can follow', 'first'),
                              (links.sum(axis=1), 'can precede', 'last')):
        tokens = np.flatnonzero(degree == 0)
        if tokens.size > 1:
            return TokenText(f'{tokens.size} tokens {what} no other ({{}}); only the {end} may',
                             tokens)
    return None


def _matching(links: sp.csr_array) -> str | None:
    n = links.shape[0]
    size = int((maximum_bipartite_matching(sp.csr_matrix(links)) >= 0).sum())
    if size >= n - 1:
        return None
    return (f'at most {size} edges can be chosen such that each token begins one at most and '
            f'ends one at most; a path needs {n - 1}')


def _removal(links: sp.csr_array) -> str | None:
    """Find k tokens whose removal leaves more than k + 1 parts, so that no Hamiltonian path
    exists."""
    # The tokens of highest degree are removed, for all k at once: tokens are added in order of
    # degree, and the components of the first m tokens are m minus the edges of the minimum spanning
    # forest among them.
    n = links.shape[0]
    either_way = links.maximum(links.T).tocoo()
    degree = np.bincount(either_way.row, minlength=n)
    arrival = np.empty(n, dtype=np.int64)
    arrival[np.argsort(degree, kind='stable')] = np.arange(1, n + 1)
    complete = np.maximum(arrival[either_way.row], arrival[either_way.col])
    forest = minimum_spanning_tree(
        sp.csr_matrix((complete, (either_way.row, either_way.col)), shape=(n, n)))
    joined = np.bincount(forest.data.astype(np.int64), minlength=n + 1).cumsum()[1:]
    present = np.arange(1, n + 1)
    components, removed = present - joined, n - present
    too_many = np.flatnonzero(components > removed + 1)
    if too_many.size == 0:
        return None
    fewest = too_many[-1]
    if removed[fewest] == 0:
        return f'the tokens fall into {components[fewest]} components'
    taken = np.flatnonzero(arrival > present[fewest])
    return TokenText(f'without {{}} the tokens fall into {components[fewest]} components; a path '
                     f'would leave {removed[fewest] + 1} at most', taken)


def _strong_components(links: sp.csr_array) -> str | None:
    """Find two strongly connected components that no path can visit one after the other."""
    count, component = connected_components(links, connection='strong')
    edges = links.tocoo()
    leaving = component[edges.row] != component[edges.col]
    condensed = nx.DiGraph()
    condensed.add_nodes_from(range(count))
    condensed.add_edges_from(zip(component[edges.row[leaving]].tolist(),
                                 component[edges.col[leaving]].tolist()))
    order = list(nx.topological_sort(condensed))
    for one, other in zip(order, order[1:]):
        if not condensed.has_edge(one, other):
            tokens = [np.flatnonzero(component == part)[:1] for part in (one, other)]
            return TokenText('tokens {} and {} do not reach each other in either direction',
                             *tokens)
    return None


OBSTACLES: dict[str, Callable[[sp.csr_array], str | None]] = {
    'sources and sinks': _ends, 'matching': _matching, 'removal of tokens': _removal,
    'strong components': _strong_components}
