"""The adjacency matrix of a graph, with or without its weights, and its symmetric forms."""

from __future__ import annotations

from typing import Literal, get_args

import networkx as nx
import numpy as np
import scipy.sparse as sp
from torch import Tensor

from analysis.graphs import GraphLike, as_graph

Symmetrization = Literal['union', 'mean', 'intersection']


def adjacency_of(graph: GraphLike, weights: bool = False) -> sp.csr_array:
    """Return the adjacency matrix of a graph.

    Args:
        graph: See :func:`analysis.graphs.as_graph`. With ``weights``, the graph may also be a
            floating tensor ``[query, key]``.
        weights: Whether the entries of the result are the weights of the edges. The weight of an
            edge is its entry in an array or its attribute ``weight`` in a networkx graph, and
            otherwise 1. The weights of repeated edges add up. Edges of weight 0 are dropped.

    Returns:
        float64 CSR array ``[query, key]`` without explicit zeros.

    Raises:
        ValueError: A weight is negative or not finite, or the graph is a batch.
    """
    if not weights:
        return as_graph(graph).to_scipy()
    matrix = sp.csr_array(_weighted(graph), copy=True)
    if matrix.dtype.kind not in 'biuf':
        raise TypeError(f"'graph' must have real weights (got {matrix.dtype}); convert the weights "
                        f"to float")
    matrix = matrix.astype(float)
    matrix.sum_duplicates()
    _check_weights(matrix.data)
    matrix.eliminate_zeros()
    return matrix


def _weighted(graph: GraphLike) -> sp.sparray | sp.spmatrix | np.ndarray:
    if isinstance(graph, Tensor) and graph.dim() == 2 and graph.is_floating_point():
        return graph.detach().cpu().double().numpy()
    checked = as_graph(graph)
    if sp.issparse(graph):
        return graph
    if isinstance(graph, nx.Graph) and len(graph):
        try:
            return nx.to_scipy_sparse_array(graph, dtype=float).T
        except (TypeError, ValueError) as error:
            raise TypeError(f"'graph' must have numbers as the attribute 'weight' of its edges "
                            f"({error}); convert the weights to float") from error
    return checked.to_scipy()


def _check_weights(weights: np.ndarray) -> None:
    bad = weights[~((weights >= 0) & np.isfinite(weights))]
    if bad.size:
        raise ValueError(f"'graph' must have weights that are finite and not negative (got "
                         f"{bad[0]:g}); replace such weights, for example by their absolute "
                         f"values, or ignore all weights")
    with np.errstate(over='ignore'):
        total = weights.sum()
    if not np.isfinite(total):
        raise ValueError(f"'graph' must have weights with a finite sum (got weights up to "
                         f"{weights.max():g}); divide all weights by the largest weight")


def symmetric_adjacency(graph: GraphLike, symmetrization: Symmetrization = 'union',
                        weights: bool = False) -> sp.csr_array:
    r"""Return the symmetric adjacency matrix of a graph.

    .. math::
        \texttt{union}: \max(A, A^\top), \quad \texttt{mean}: (A + A^\top) / 2, \quad
        \texttt{intersection}: \min(A, A^\top)

    Self-loops are kept and count once. If :math:`A` is symmetric, all three forms equal :math:`A`.

    Args:
        graph: See :func:`adjacency_of`, with as many keys as queries.
        symmetrization (str): The form, ``'union'``, ``'mean'`` or ``'intersection'``. The three
            forms differ for an edge without its reverse.
        weights (bool): Whether to use the weights of edges instead of 1.

    Returns:
        float64 CSR array ``[n, n]``.

    Raises:
        ValueError: The numbers of keys and queries differ, a weight is negative or not finite, or
            ``symmetrization`` is unknown.
    """
    return symmetrize(adjacency_of(graph, weights), symmetrization)


def symmetrize(adjacency: sp.csr_array, symmetrization: Symmetrization) -> sp.csr_array:
    """Return an adjacency matrix ``[n, n]`` made symmetric, see :func:`symmetric_adjacency`."""
    num_queries, num_keys = adjacency.shape
    if num_queries != num_keys:
        raise ValueError(f"'graph' must have as many keys as queries to be symmetrised (got "
                         f"{num_keys} and {num_queries}); for other graphs, compute singular "
                         f"values by analysis.spectrum")
    if symmetrization not in get_args(Symmetrization):
        raise ValueError(f"'symmetrization' must be one of {get_args(Symmetrization)} (got "
                         f"{symmetrization!r})")
    reverse = adjacency.T.tocsr()
    if symmetrization == 'mean':
        return (adjacency + reverse) / 2
    combine = adjacency.maximum if symmetrization == 'union' else adjacency.minimum
    return combine(reverse)


def describe_symmetrization(adjacency: sp.csr_array, symmetrization: str) -> str:
    """Return ``symmetrization`` as text for a table, or 'not needed' if the adjacency matrix is
    already symmetric."""
    is_symmetric = (adjacency != adjacency.T.tocsr()).nnz == 0
    return 'not needed' if is_symmetric else symmetrization
