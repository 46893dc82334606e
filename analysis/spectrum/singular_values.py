"""Singular values of D_q^-1/2 A D_k^-1/2, for graphs whose numbers of keys and queries differ."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from analysis.spectrum.laplacian import Laplacian


def join_queries_to_keys(adjacency: sp.csr_array) -> sp.csr_array:
    """Return the symmetric adjacency matrix of the graph that joins queries to keys.

    Its rows and columns are first the queries, then the keys.
    """
    return sp.csr_array(sp.block_array([[None, adjacency], [adjacency.T, None]]))


def all_singular_values(adjacency: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return all singular values of :math:`D_q^{-1/2} A D_k^{-1/2}` for an adjacency matrix A
    ``[query, key]``, and their residuals, as two float64 arrays. The values descend."""
    query_degree, key_degree = (adjacency.sum(axis=axis) for axis in (1, 0))
    matrix = adjacency.toarray()
    matrix /= np.sqrt(np.where(query_degree > 0, query_degree, 1))[:, None]
    matrix /= np.sqrt(np.where(key_degree > 0, key_degree, 1))
    left, values, right = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
    errors = matrix @ right.T - left * values, matrix.T @ left - right.T * values
    return values, np.linalg.norm(np.vstack(errors), axis=0) / np.sqrt(2)


def largest_singular_values(joined: sp.csr_array, count: int
                            ) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the ``count`` largest singular values of :math:`D_q^{-1/2} A D_k^{-1/2}`, their
    residuals and the name of the method.

    A singular value is 1 minus an eigenvalue of the normalised Laplacian of ``joined``. Isolated
    nodes only add zeros.

    Args:
        joined: The result of :func:`join_queries_to_keys` for A.
        count: Number of singular values.
    """
    has_edge = joined.sum(axis=1) > 0
    if not has_edge.any():
        return np.zeros(count), np.zeros(count), 'components'
    pairs = Laplacian(sp.csr_array(joined[has_edge][:, has_edge])).smallest(count)
    values = np.maximum(1 - pairs.values, 0)
    return values, pairs.residuals, pairs.method
