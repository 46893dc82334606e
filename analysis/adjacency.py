"""The symmetric adjacency matrix of spectral questions."""

from __future__ import annotations

from typing import Literal, get_args

import scipy.sparse as sp

from analysis.graphs import GraphLike, as_graph
from graphattn import BipartiteGraph

Symmetrization = Literal['union', 'mean', 'intersection']


def symmetric_adjacency(graph: GraphLike,
                        symmetrization: Symmetrization = 'union') -> sp.csr_array:
    r"""Return the symmetric adjacency matrix of a graph.

    .. math::
        \texttt{union}: \max(A, A^\top), \quad \texttt{mean}: (A + A^\top) / 2, \quad
        \texttt{intersection}: \min(A, A^\top)

    Self-loops are kept and count once. All three equal :math:`A` if it is symmetric.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        symmetrization (str): How an edge without its reverse is treated.

    Returns:
        float64 CSR array ``[n, n]``.

    Raises:
        ValueError: The numbers of keys and queries differ, or ``symmetrization`` is unknown.
    """
    graph = as_graph(graph)
    if graph.num_queries != graph.num_keys:
        raise ValueError(f"'graph' must have as many keys as queries to be symmetrised (got "
                         f"{graph}); analysis.spectrum has the singular values of other graphs")
    if symmetrization not in get_args(Symmetrization):
        raise ValueError(f"'symmetrization' must be one of {get_args(Symmetrization)} (got "
                         f"{symmetrization!r})")
    adjacency = graph.to_scipy()
    reverse = adjacency.T.tocsr()
    if symmetrization == 'mean':
        return (adjacency + reverse) / 2
    combine = adjacency.maximum if symmetrization == 'union' else adjacency.minimum
    return combine(reverse)


def describe_symmetrization(graph: BipartiteGraph, symmetrization: str) -> str:
    """Return the name of the symmetrisation, or 'not needed' for a symmetric graph."""
    adjacency = graph.to_scipy()
    is_symmetric = (adjacency != adjacency.T.tocsr()).nnz == 0
    return 'not needed' if is_symmetric else symmetrization
