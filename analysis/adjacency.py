"""The symmetric matrix that spectral questions are asked of."""

from __future__ import annotations

from typing import Literal, get_args

import scipy.sparse as sp

from analysis.graphs import GraphLike, as_graph
from graphattn import BipartiteGraph

Symmetrization = Literal['union', 'mean', 'intersection']


def symmetric_adjacency(graph: GraphLike,
                        symmetrization: Symmetrization = 'union') -> sp.csr_array:
    r"""Return the adjacency matrix of a graph without the direction of its edges.

    .. math::
        \texttt{union}: \max(A, A^\top), \quad \texttt{mean}: (A + A^\top) / 2, \quad
        \texttt{intersection}: \min(A, A^\top)

    Self-loops stay, and count once. All three are :math:`A` where it is symmetric.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        symmetrization (str): What becomes of an edge without its reverse.

    Returns:
        float64 CSR array ``[n, n]``.

    Raises:
        ValueError: The graph has not as many keys as queries, or ``symmetrization`` is unknown.
    """
    graph = as_graph(graph)
    if graph.num_queries != graph.num_keys:
        raise ValueError(f"'graph' must have as many keys as queries to be made symmetric (got "
                         f"{graph}); its singular values are another question")
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
    """Return the name of the symmetrisation, or that the graph needed none."""
    adjacency = graph.to_scipy()
    is_symmetric = (adjacency != adjacency.T.tocsr()).nnz == 0
    return 'not needed' if is_symmetric else symmetrization
