"""The random walk along a graph, its transition matrix, and its eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from analysis.graphs import GraphLike, as_graph
from graphattn import BipartiteGraph

MOVED = 1e-13  # a hundred times rounding


def square_graph(graph: GraphLike) -> BipartiteGraph:
    """Return the graph of an object, and raise an error unless it has as many keys as queries, so
    that hops can be repeated.

    Raises:
        ValueError: The graph has no tokens, or its numbers of keys and queries differ.
    """
    graph = as_graph(graph)
    if graph.num_queries != graph.num_keys or graph.num_queries == 0:
        raise ValueError(f"'graph' must have as many keys as queries, and at least one of each, "
                         f"because attention is applied repeatedly (got {graph})")
    return graph


def uniform_attention(graph: GraphLike, keyless: Literal['zero', 'stay'] = 'zero') -> sp.csr_array:
    r"""Return the attention matrix with equal weights for all keys of a query.

    .. math:: A_{ij} = \mathbb{1}[j \in \mathcal{N}(i)] \, / \, |\mathcal{N}(i)|

    Read as a random walk, the matrix moves from query i to one of its keys.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        keyless (str): The row of a query without keys. ``'zero'`` leaves it empty, as in attention.
            ``'stay'`` adds a self-loop, as a walk requires.

    Returns:
        float64 CSR array ``[n, n]``, indexed by query, then key; rows sum to 1, or to 0 for a query
        without keys.

    Raises:
        ValueError: The graph has no tokens, or its numbers of keys and queries differ.
    """
    graph = square_graph(graph)
    adjacency = graph.to_scipy()
    degree = graph.in_degree().cpu().numpy()
    attention = sp.diags_array(1 / np.maximum(degree, 1)) @ adjacency
    if keyless == 'stay':
        attention = attention + sp.diags_array((degree == 0).astype(float))
    return sp.csr_array(attention)


def is_symmetric(attention: sp.csr_array) -> bool:
    """Return whether every edge of the attention matrix has a reverse edge."""
    edges = attention != 0
    return (edges != edges.T).nnz == 0


def strong_components(attention: sp.csr_array) -> np.ndarray:
    """Return the index of each token's strongly connected component, int32 ``[n]``."""
    return connected_components(attention, connection='strong')[1]


def component_eigenvalues(matrix: np.ndarray | sp.csr_array, component: np.ndarray,
                          moved: float = 0.) -> np.ndarray:
    """Return all eigenvalues of a matrix that is block triangular, where a block is a component.

    Each component is solved separately, because the whole matrix can be far from normal. For 256
    pairs of tokens where each token also attends to the pair before, LAPACK finds a second modulus
    of 0.93 in the whole matrix instead of 0.5.

    Args:
        matrix: ``[n, n]``, dense or sparse.
        component: The result of :func:`strong_components` for the graph, int ``[n]``. ``matrix`` is
            the attention of the graph, or a polynomial in it.
        moved: Size of a random matrix that is added to each component. ``MOVED`` is much larger
            than rounding errors. If it moves eigenvalues far, as for defective matrices, the
            eigenvalues without it are no more accurate.

    Returns:
        complex128 array ``[n]``, largest modulus first.
    """
    loners, blocks = diagonal_blocks(matrix, component)
    solved = (np.linalg.eigvals(_moved(block, moved) if moved else block) for block in blocks)
    values = np.concatenate([loners, *solved]).astype(complex)
    return values[np.argsort(-np.abs(values), kind='stable')]


def distance_of_sets(left: np.ndarray, right: np.ndarray) -> float:
    """Return the Hausdorff distance between two arrays, read as sets of numbers."""
    apart = np.abs(left[:, None] - right)
    return float(max(apart.min(axis=0).max(), apart.min(axis=1).max()))


def _moved(block: np.ndarray, size: float) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(block.shape)
    return block + noise * size / math.sqrt(len(block))


def members_of(component: np.ndarray) -> list[np.ndarray]:
    """Return an array of the tokens of each component, in ascending order, given the component of
    each token, ``[n]``."""
    order = np.argsort(component, kind='stable')
    return np.split(order, np.flatnonzero(np.diff(component[order])) + 1)


def diagonal_blocks(matrix: np.ndarray | sp.csr_array,
                    component: np.ndarray) -> tuple[np.ndarray, Iterator[np.ndarray]]:
    """Return the diagonal blocks of a square matrix, where a block is a component.

    The first result is an array of the diagonal entries of all components with a single token. The
    second result is an iterator over the blocks of the other components, each a dense array
    ``[size, size]``.
    """
    sizes = np.bincount(component)
    loners = matrix.diagonal()[sizes[component] == 1]
    order = np.argsort(component, kind='stable')
    ordered = matrix[order][:, order]
    places = [slice(end - size, end) for end, size in zip(np.cumsum(sizes), sizes) if size > 1]
    blocks = (ordered[place, place] for place in places)
    return loners, (block.toarray() if sp.issparse(block) else block for block in blocks)
