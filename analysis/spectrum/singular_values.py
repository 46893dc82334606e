"""Singular values of D_q^-1/2 A D_k^-1/2, for graphs whose keys and queries differ."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from analysis.spectrum.laplacian import Laplacian


def all_singular_values(adjacency: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return every singular value, and its residual."""
    query_degree, key_degree = (np.maximum(adjacency.sum(axis=axis), 1) for axis in (1, 0))
    matrix = adjacency.toarray() / np.sqrt(np.outer(query_degree, key_degree))
    left, values, right = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
    errors = matrix @ right.T - left * values, matrix.T @ left - right.T * values
    return values, np.linalg.norm(np.vstack(errors), axis=0) / np.sqrt(2)


def largest_singular_values(joined: sp.csr_array, count: int
                            ) -> tuple[np.ndarray, np.ndarray, str]:
    """Return 1 - lambda of the graph that joins queries to keys; isolated nodes only add zeros."""
    has_edge = joined.sum(axis=1) > 0
    if not has_edge.any():
        return np.zeros(count), np.zeros(count), 'components'
    pairs = Laplacian(sp.csr_array(joined[has_edge][:, has_edge])).smallest(count)
    values = np.maximum(1 - pairs.values, 0)
    return values, pairs.residuals, pairs.method
