"""Cheap certificates that a graph has no Hamiltonian path."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import (
    breadth_first_order,
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


def _cut_tokens(links: sp.csr_array) -> str | None:
    """Find a token whose removal shows that no Hamiltonian path exists, because the blocks of the
    graph do not form a chain."""
    token, block = _blocks(links.maximum(links.T).tocsr())
    membership = np.bincount(token)
    most = int(membership.argmax())
    if membership[most] > 2:
        return TokenText(f'without token {{}} {membership[most]} parts remain; a path would leave '
                         f'2', [most])
    is_cut = membership[token] > 1
    crowded = np.flatnonzero(np.bincount(block[is_cut]) > 2)
    if crowded.size == 0:
        return None
    cuts = token[is_cut & (block == crowded[0])]
    return TokenText('a separate part hangs at each of the tokens {}; a path has two ends', cuts)


def _blocks(either_way: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return the biconnected components of a connected graph as two int arrays: the token and the
    component of each membership."""
    # Tarjan and Vishkin (1985), on a breadth-first search tree, in which an edge outside the tree
    # never joins a token to an ancestor
    order, parent = breadth_first_order(either_way, 0)
    n, rank = len(order), np.argsort(order)
    # from here on, tokens are numbered in the order of the breadth-first search
    parent = np.append(0, rank[parent[order[1:]]])
    edges = either_way[order][:, order]
    first, end, low, high = _subtrees(edges, parent)
    # the edge leaves the subtree of the parent
    leaves = (low < first[parent]) | (high >= end[parent])
    edges = edges.tocoo()
    is_other = (parent[edges.row] != edges.col) & (parent[edges.col] != edges.row)
    one, other = (np.append(edges.row[is_other], np.flatnonzero(leaves)),
                  np.append(edges.col[is_other], parent[leaves]))
    # Each token except the root represents the edge to its parent.
    block = connected_components(sp.coo_array((np.ones(len(one)), (one, other)), shape=(n, n)),
                                 directed=False)[1][1:]
    token = np.append(order[1:], order[parent[1:]]).astype(np.int64)
    pairs = np.unique(token * n + np.tile(block, 2))
    return pairs // n, pairs % n


def _subtrees(edges: sp.csr_array, parent: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the preorder numbers of a tree, and how far the edges of each subtree reach."""
    above = parent.tolist()
    n = len(above)
    size, first = [1] * n, [0] * n
    for token in range(n - 1, 0, -1):
        size[above[token]] += size[token]
    end = [1] * n
    for token in range(1, n):
        first[token] = end[above[token]]
        end[above[token]] += size[token]
        end[token] = first[token] + 1
    number = np.array(first)[edges.indices]
    low = np.minimum.reduceat(number, edges.indptr[:-1]).tolist()
    high = np.maximum.reduceat(number, edges.indptr[:-1]).tolist()
    for token in range(n - 1, 0, -1):
        low[above[token]] = min(low[above[token]], low[token])
        high[above[token]] = max(high[above[token]], high[token])
    return tuple(map(np.array, (first, end, low, high)))


OBSTACLES: dict[str, Callable[[sp.csr_array], str | None]] = {
    'sources and sinks': _ends, 'matching': _matching, 'removal of tokens': _removal,
    'strong components': _strong_components, 'cut tokens': _cut_tokens}
