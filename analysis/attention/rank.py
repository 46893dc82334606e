"""Singular values of an attention matrix, and measures of its distance to rank 1."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse import csgraph

from analysis.spectrum.extremes import smallest_outside
from analysis.spectrum.singular_values import join_queries_to_keys

# Up to this number of tokens, all singular values take seconds to compute.
DENSE_TOKENS = 2048


def rank_of(matrix: sp.csr_array) -> dict[str, object]:
    """Return how close a non-negative matrix is to rank 1, as a dict. Its names are fields of
    :class:`analysis.attention.AttentionMatrix`."""
    is_dense = max(matrix.shape) <= DENSE_TOKENS
    values = _all(matrix) if is_dense else _two_largest(matrix)
    sigma_1 = float(values[0])
    sigma_2 = float(values[1]) if len(values) > 1 else None
    squares = float(matrix.data @ matrix.data)
    return dict(
        sigma_1=sigma_1, sigma_2=sigma_2, gap=None if sigma_2 is None else sigma_1 - sigma_2,
        effective_rank=_effective_rank(values) if is_dense else None,
        stable_rank=squares / sigma_1**2 if sigma_1 > 0 else 0., singular_values=values)


def _effective_rank(values: np.ndarray) -> float:
    shares = values[values > 0] / max(values.sum(), np.finfo(float).tiny)
    return math.exp(-shares @ np.log(shares)) if shares.size else 0.


def _all(matrix: sp.csr_array) -> np.ndarray:
    return scipy.linalg.svdvals(matrix.toarray(), check_finite=False)


def _two_largest(matrix: sp.csr_array) -> np.ndarray:
    """Return the two largest singular values of a non-negative matrix, float64 ``[2]``. Each
    connected part of the matrix is solved separately.

    The largest singular value of a connected part is simple (Perron and Frobenius), so the
    iteration cannot overlook a second copy of it. A part is skipped if the upper bound of its
    singular values is below the second largest value found so far.
    """
    component = csgraph.connected_components(join_queries_to_keys(matrix), directed=False)[1]
    of_queries, of_keys = np.split(component, [matrix.shape[0]])
    bound = np.sqrt(_largest_sums(matrix.sum(axis=1), of_queries, component)
                    * _largest_sums(matrix.sum(axis=0), of_keys, component))
    found = np.zeros(2)
    for part in np.argsort(-bound, kind='stable'):
        if bound[part] <= found[1]:
            break
        own = matrix[of_queries == part][:, of_keys == part]
        found = np.sort(np.concatenate([found, _of_part(own, bound[part])]))[:-3:-1]
    return found


def _largest_sums(sums: np.ndarray, of_nodes: np.ndarray, component: np.ndarray) -> np.ndarray:
    largest = np.zeros(component.max(initial=-1) + 1)
    np.maximum.at(largest, of_nodes, sums)
    return largest


def _of_part(matrix: sp.csr_array, bound: float) -> np.ndarray:
    if math.prod(matrix.shape) <= DENSE_TOKENS**2:
        return _all(matrix)[:2]
    # the eigenvalues of this matrix are plus and minus the singular values
    joined = join_queries_to_keys(matrix)
    size = joined.shape[0]
    flipped = sp.csr_array(bound * sp.eye_array(size) - joined)
    vectors, _ = smallest_outside(flipped, sp.csc_array((size, 0)), 2, bound)
    return np.einsum('nk,nk->k', vectors, joined @ vectors)
