"""The eigenvalues of a graph's Laplacian, or its singular values: the question and its answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from analysis.adjacency import Symmetrization, describe_symmetrization, symmetric_adjacency
from analysis.checks import check_count
from analysis.graphs import GraphLike, as_graph
from analysis.result import Result
from analysis.spectrum.laplacian import Laplacian, LaplacianKind
from analysis.spectrum.singular_values import all_singular_values, largest_singular_values
from graphattn import BipartiteGraph

# A float64 matrix, its eigenvectors and LAPACK's work space are 0.5 GB here, and grow by n^2.
FULL_NODES = 4096


@dataclass(frozen=True)
class Spectrum(Result):
    r"""Eigenvalues or singular values, each with its residual.

    Attributes:
        matrix (str): Whose values these are.
        symmetrization (str): What became of an edge without its reverse.
        num_components (int): Connected components, an isolated node being one. It is how often
            the eigenvalue 0 of a Laplacian occurs.
        lambda_2 (float, optional): The second smallest eigenvalue, counted with multiplicity;
            exactly 0 if the graph is not connected, and ``None`` for one node.
        lambda_max (float, optional): The largest eigenvalue.
        sigma_2 (float, optional): The second largest singular value, if there are as many.
        max_residual (float): The largest of ``residuals``.
        method (str): ``dense``, ``shift-invert`` or ``Lanczos``, for each end if they differ.
        index (ndarray): int ``[num_values]``, which value it is of all in this order, from 0.
        values (ndarray): float64 ``[num_values]``; eigenvalues ascend, singular values descend.
        residuals (ndarray): float64 ``[num_values]``, :math:`\|L v - \lambda v\|` for the
            eigenvector v of norm 1 that was found. Some eigenvalue of L is as near to the value.
    """

    matrix: str
    symmetrization: str
    num_components: int
    lambda_2: float | None
    lambda_max: float | None
    sigma_2: float | None
    max_residual: float
    method: str
    index: np.ndarray
    values: np.ndarray
    residuals: np.ndarray


def spectrum(
    graph: GraphLike,
    *,
    laplacian: LaplacianKind = 'normalized',
    symmetrization: Symmetrization = 'union',
    extremes: int | None = None,
) -> Spectrum:
    r"""Compute the eigenvalues of a graph's Laplacian, or its singular values if it is not square.

    With A the symmetric adjacency matrix and D its row sums,

    .. math::
        L_{\texttt{normalized}} = D^{-1/2} (D - A) D^{-1/2}, \qquad
        L_{\texttt{combinatorial}} = D - A.

    An isolated node has a row of zeros in both, so that 0 is an eigenvalue once for every
    connected component; these zeros are counted and not computed. The first is
    :math:`I - D^{-1/2} A D^{-1/2}` where no node is isolated. Self-loops are part of A and D.

    With other keys than queries there is no Laplacian. The singular values of
    :math:`D_q^{-1/2} A D_k^{-1/2}` take its place; they lie in [0, 1], and
    :math:`1 \pm \sigma` are the eigenvalues of the normalised Laplacian of the graph that joins
    queries to keys, those of isolated nodes apart.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it.
        laplacian: normalized or combinatorial; of no effect unless there are as many keys as
            queries.
        symmetrization: What becomes of an edge without its reverse: union, mean or intersection,
            see :func:`analysis.adjacency.symmetric_adjacency`.
        extremes: So many of the smallest eigenvalues and of the largest, or so many of the
            largest singular values, instead of all; at least 2.

    Returns:
        Spectrum.

    Raises:
        TypeError, ValueError: An argument is wrong, the graph has no nodes, or it has more than
            4,096 and all eigenvalues are asked for.
        scipy.sparse.linalg.ArpackNoConvergence: The extremes are too close to one another.

    Source: Chung, "Spectral Graph Theory" (1997), Sec. 1.2; Feng et al., "Diffuser" (2023),
    Appendix B.

    Example:
        >>> import networkx as nx
        >>> from analysis.spectrum import spectrum
        >>> spectrum(nx.complete_graph(5)).values.round(2) + 0
        array([0.  , 1.25, 1.25, 1.25, 1.25])
    """
    graph = as_graph(graph)
    _check(graph, extremes)
    if graph.num_queries != graph.num_keys:
        return _singular_values(graph, extremes)
    system = Laplacian(symmetric_adjacency(graph, symmetrization), laplacian)
    n = system.num_nodes
    if extremes is None or 2 * extremes >= n:
        index, parts = np.arange(n), [system.all()]
    else:
        index = np.concatenate([np.arange(extremes), np.arange(n - extremes, n)])
        parts = [system.smallest(extremes), system.largest(extremes)]
    values = np.concatenate([part.values for part in parts])
    residuals = np.concatenate([part.residuals for part in parts])
    return Spectrum(
        matrix=f'{laplacian} Laplacian',
        symmetrization=describe_symmetrization(graph, symmetrization),
        num_components=system.num_components,
        lambda_2=float(values[1]) if n > 1 else None, lambda_max=float(values[-1]),
        sigma_2=None, max_residual=float(residuals.max()),
        method=' / '.join(dict.fromkeys(part.method for part in parts)),
        index=index, values=values, residuals=residuals)


def _check(graph: BipartiteGraph, extremes: int | None) -> None:
    smaller_side = min(graph.num_queries, graph.num_keys)
    if smaller_side == 0:
        raise ValueError(f"'graph' must have at least one token (got {graph})")
    if extremes is None and smaller_side > FULL_NODES:
        raise ValueError(f"'graph' is too large for all its eigenvalues (got {smaller_side} "
                         f"tokens, at most {FULL_NODES}); ask for some at both ends: extremes=6, "
                         f"or --extremes 6")
    if extremes is not None:
        check_count('extremes', extremes, at_least=2)  # for lambda_2 is the second


def _singular_values(graph: BipartiteGraph, extremes: int | None) -> Spectrum:
    adjacency = graph.to_scipy()
    joined = sp.csr_array(sp.block_array([[None, adjacency], [adjacency.T, None]]))
    count = min(graph.num_queries, graph.num_keys)
    num_components = csgraph.connected_components(joined, directed=False)[0]
    if extremes is None or extremes >= count:
        values, residuals = all_singular_values(adjacency)
        method = 'dense'
    else:
        values, residuals, method = largest_singular_values(joined, extremes)
    return Spectrum(
        matrix='D_q^-1/2 A D_k^-1/2', symmetrization='not needed', num_components=num_components,
        lambda_2=None, lambda_max=None, sigma_2=float(values[1]) if values.size > 1 else None,
        max_residual=float(residuals.max()), method=method, index=np.arange(values.size),
        values=values, residuals=residuals)
