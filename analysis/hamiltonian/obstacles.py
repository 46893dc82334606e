"""The first stage: certificates, cheap to find, that there is no path."""

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


def _ends(links: sp.csr_array) -> str | None:
    for degree, what, end in ((links.sum(axis=0), 'can follow', 'first'),
                              (links.sum(axis=1), 'can precede', 'last')):
        tokens = np.flatnonzero(degree == 0)
        if tokens.size > 1:
            return f'{tokens.size} tokens {what} no other ({_some(tokens)}); only the {end} may'
    return None


def _matching(links: sp.csr_array) -> str | None:
    n = links.shape[0]
    size = int((maximum_bipartite_matching(sp.csr_matrix(links)) >= 0).sum())
    if size >= n - 1:
        return None
    return (f'at most {size} edges leave and enter every token no more than once; a path has '
            f'{n - 1}')


def _removal(links: sp.csr_array) -> str | None:
    """Taking k tokens out of a path leaves k + 1 parts at most. For all k at once: let the tokens
    come in by rising degree; those of the first m have m components less one for each edge of the
    minimum spanning forest that is complete by then."""
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
    return (f'without {_some(taken)} the tokens fall into {components[fewest]} components; a path '
            f'would leave {removed[fewest] + 1} at most')


def _strong_components(links: sp.csr_array) -> str | None:
    """A path goes through the strong components in turn, each once: from every one there must be
    an edge to the next in topological order."""
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
            tokens = [int(np.flatnonzero(component == part)[0]) for part in (one, other)]
            return f'tokens {tokens[0]} and {tokens[1]} do not reach one another either way'
    return None


def _cut_tokens(links: sp.csr_array) -> str | None:
    """The blocks of a graph that has a path hang together like a chain."""
    blocks = list(nx.biconnected_components(nx.from_scipy_sparse_array(links.maximum(links.T))))
    membership = np.bincount(np.concatenate([list(block) for block in blocks]))
    most = int(membership.argmax())
    if membership[most] > 2:
        return f'without token {most} {membership[most]} parts remain; a path would leave 2'
    for block in blocks:
        cuts = [token for token in block if membership[token] > 1]
        if len(cuts) > 2:
            return (f'at each of the tokens {_some(np.sort(cuts))} a part hangs; a path has two '
                    f'ends')
    return None


def _some(tokens: np.ndarray) -> str:
    shown = ', '.join(map(str, tokens[:3]))
    return shown if len(tokens) <= 3 else f'{shown} and {len(tokens) - 3} more'


OBSTACLES: dict[str, Callable[[sp.csr_array], str | None]] = {
    'sources and sinks': _ends, 'matching': _matching, 'removal of tokens': _removal,
    'strong components': _strong_components, 'cut tokens': _cut_tokens}
