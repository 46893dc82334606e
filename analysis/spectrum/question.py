"""The question of a graph's eigenvalues, or its singular values, and its result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from analysis.adjacency import (
    Symmetrization,
    adjacency_of,
    describe_symmetrization,
    symmetrize,
)
from analysis.checks import check_count
from analysis.graphs import GraphLike
from analysis.result import Result
from analysis.spectrum.laplacian import Laplacian, LaplacianKind
from analysis.spectrum.singular_values import (
    all_singular_values,
    join_queries_to_keys,
    largest_singular_values,
)

# A float64 matrix of this size, its eigenvectors and LAPACK's workspace take 0.5 GB, which grows as
# n^2.
FULL_NODES = 4096


@dataclass(frozen=True)
class Spectrum(Result):
    r"""The eigenvalues or singular values of a graph, with their residuals.

    Attributes:
        matrix (str): The name of the matrix that has these values.
        symmetrization (str): How an edge without its reverse was treated.
        num_components (int): Number of connected components, isolated nodes included. It is the
            multiplicity of a Laplacian's eigenvalue 0.
        lambda_2 (float, optional): The second smallest eigenvalue, counted with multiplicity. It is
            exactly 0 if the graph is not connected, and ``None`` if the graph has one node.
        lambda_max (float, optional): The largest eigenvalue.
        sigma_2 (float, optional): The second largest singular value, if there are two.
        max_residual (float): The largest of ``residuals``.
        method (str): ``dense``, ``shift-invert`` or ``Lanczos``. If the two ends of the spectrum
            use different methods, both are named.
        index (ndarray): int ``[num_values]``, the index of each value among all eigenvalues or
            singular values, in the same order.
        values (ndarray): float64 ``[num_values]``; eigenvalues ascend, singular values descend.
        residuals (ndarray): float64 ``[num_values]``, :math:`\|L v - \lambda v\|` for the computed
            eigenvector v of norm 1. The matrix has an eigenvalue within this distance of the value.
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
    weights: bool = False,
) -> Spectrum:
    r"""Compute the eigenvalues of a graph's Laplacian, or the singular values of another graph.

    Let A be the symmetric adjacency matrix, of ones or weights, and D its row sums. The two
    Laplacians are

    .. math::
        L_{\texttt{normalized}} = D^{-1/2} (D - A) D^{-1/2}, \qquad
        L_{\texttt{combinatorial}} = D - A.

    An isolated node has a row of zeros in both, so the multiplicity of the eigenvalue 0 is the
    number of connected components. These zeros are counted, not computed. If no node is isolated,
    the normalised Laplacian is :math:`I - D^{-1/2} A D^{-1/2}`. Self-loops are part of A and D.

    If the numbers of keys and queries differ, there is no Laplacian, and the singular values of
    :math:`D_q^{-1/2} A D_k^{-1/2}` are computed instead. They lie in [0, 1]. Apart from isolated
    nodes, :math:`1 \pm \sigma` are the eigenvalues of the normalised Laplacian of the graph that
    joins queries to keys.

    Args:
        graph: See :func:`analysis.adjacency.adjacency_of`.
        laplacian: normalized or combinatorial; ignored if the numbers of keys and queries differ.
        symmetrization: The treatment of an edge without its reverse: union, mean or intersection,
            see :func:`analysis.adjacency.symmetric_adjacency`.
        extremes: Number of eigenvalues to compute at each end, or of largest singular values,
            instead of all; at least 2.
        weights: Whether to use the weights of edges instead of 1, see
            :func:`analysis.adjacency.adjacency_of`.

    Returns:
        Spectrum.

    Raises:
        TypeError, ValueError: An argument is invalid, the graph has no nodes, a weight is negative
            or not finite, the graph has more than 4,096 nodes and ``extremes`` is omitted, or the
            extreme values are too close together.

    Source: Chung, "Spectral Graph Theory" (1997), Sec. 1.2; Feng et al., "Diffuser" (2023),
    Appendix B.

    Example:
        >>> import networkx as nx
        >>> from analysis.spectrum import spectrum
        >>> spectrum(nx.complete_graph(5)).values.round(2) + 0
        array([0.  , 1.25, 1.25, 1.25, 1.25])
    """
    adjacency = adjacency_of(graph, weights)
    _check(adjacency, extremes)
    num_queries, num_keys = adjacency.shape
    if num_queries != num_keys:
        return _singular_values(adjacency, extremes)
    system = Laplacian(symmetrize(adjacency, symmetrization), laplacian)
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
        symmetrization=describe_symmetrization(adjacency, symmetrization),
        num_components=system.num_components,
        lambda_2=float(values[1]) if n > 1 else None, lambda_max=float(values[-1]),
        sigma_2=None, max_residual=float(residuals.max()),
        method=' / '.join(dict.fromkeys(part.method for part in parts)),
        index=index, values=values, residuals=residuals)


def _check(adjacency: sp.csr_array, extremes: int | None) -> None:
    num_queries, num_keys = adjacency.shape
    smaller_side = min(num_queries, num_keys)
    if smaller_side == 0:
        raise ValueError(f"'graph' must have at least one token (got {num_queries} queries and "
                         f"{num_keys} keys)")
    if extremes is None and smaller_side > FULL_NODES:
        raise ValueError(f"'graph' must have at most {FULL_NODES} tokens to compute all "
                         f"eigenvalues (got {smaller_side}); pass extremes=6 (or --extremes 6) to "
                         f"compute only the smallest and largest")
    if extremes is not None:
        check_count('extremes', extremes, at_least=2)  # for lambda_2


def _singular_values(adjacency: sp.csr_array, extremes: int | None) -> Spectrum:
    joined, count = join_queries_to_keys(adjacency), min(adjacency.shape)
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
