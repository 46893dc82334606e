"""The smallest eigenvalues of a large symmetric matrix, outside a known null space."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph, linalg

# Maximum number of multiplications of a sparse factorisation: a few seconds, with little memory.
_FACTOR_WORK = 2e9
# Wanted residual of an eigenpair, relative to the mean eigenvalue.
_ACCURACY = 1e-9
# Largest accepted residual of an eigenvector, relative to the mean eigenvalue.
_MAX_ERROR = 1e-7
# Largest growth of the entries in a factorisation; its rounding errors are then about 1e-12 of the
# matrix.
_MAX_GROWTH = 1e4


def smallest_outside(matrix: sp.csr_array, null_space: sp.csc_array, count: int, mean: float
                     ) -> tuple[np.ndarray, str]:
    """Return the eigenvectors of the smallest eigenvalues outside a known null space, ``[n,
    count]``, and the name of the method that found them."""
    order = _band_order(matrix)
    method = 'Lanczos' if order is None else 'shift-invert'
    try:
        vectors = (_lanczos(matrix, null_space, count, mean) if order is None
                   else _shift_invert(matrix, null_space, count, mean, order))
    except linalg.ArpackError as error:
        raise _too_close(method, 'no convergence') from error
    image = matrix @ vectors
    error = np.linalg.norm(image - vectors * np.einsum('nk,nk->k', vectors, image), axis=0).max()
    if not error <= _MAX_ERROR * mean:
        raise _too_close(method, f'a residual of {error:.1g}')
    return vectors, method


def _too_close(method: str, got: str) -> ValueError:
    return ValueError(f"'graph' has extreme eigenvalues that are too close together for {method} "
                      f"(got {got}); measure a graph of at most 1,024 tokens, which needs no "
                      f"iteration")


def _lanczos(matrix: sp.csr_array, null_space: sp.csc_array, count: int, mean: float
             ) -> np.ndarray:
    """Return the eigenvectors of the smallest eigenvalues, ``[n, count]``, by Lanczos iteration on
    the flipped matrix, whose largest eigenvalues belong to the same eigenvectors."""
    # ARPACK finds the largest eigenvalues reliably, so the matrix is flipped, and the null space is
    # moved to the other end. A few more eigenpairs and a large subspace help if the wanted
    # eigenvalues are close together, or if hubs have eigenvalues far away at the other end.
    n = matrix.shape[0]
    centre = float(matrix.trace()) / n
    away = 2 * centre + 2 * float(abs(matrix).sum(axis=1).max())

    def flipped(vector: np.ndarray) -> np.ndarray:
        lifted = null_space @ (null_space.T @ vector)
        return 2 * centre * vector - matrix @ vector - away * lifted

    wanted = min(count + 2, n - 1)
    _, vectors = linalg.eigsh(
        linalg.LinearOperator((n, n), matvec=flipped, dtype=float), wanted, which='LA',
        ncv=min(wanted + 60, n), maxiter=1000, tol=_ACCURACY * mean / (2 * centre),
        v0=_start(null_space))
    return _outside(null_space, vectors)[:, ::-1][:, :count]


def _shift_invert(matrix: sp.csr_array, null_space: sp.csc_array, count: int, mean: float,
                  order: np.ndarray) -> np.ndarray:
    """Return the eigenvectors of the smallest eigenvalues, ``[n, count]``, computed one by one,
    each orthogonal to the null space and to the eigenvectors before. ``order`` is the order of the
    nodes in which the matrix is factored."""
    known, shift = null_space, -1e-8 * mean
    for _ in range(count):
        vector, shift = _next_above(matrix, known, shift, order)
        known = sp.hstack([known, sp.csc_array(vector[:, None])], format='csc')
    return known[:, null_space.shape[1]:].toarray()


def _next_above(matrix: sp.csr_array, known: sp.csc_array, shift: float, order: np.ndarray
                ) -> tuple[np.ndarray, float]:
    """Return the eigenvector of the smallest eigenvalue outside the span of ``known``, and a number
    just below that eigenvalue, from which the next search can start."""
    # The shift rises until clustered eigenvalues are well separated. The pivots have the signs of
    # the shifted eigenvalues (Sylvester's law of inertia), so a shift beyond an unknown eigenvalue
    # is detected, and moved half of the way back.
    n, num_known = known.shape
    rounding = 1e-12 * float(abs(matrix).sum(axis=1).max())
    safe = shift
    for tolerance in (1e-3, 1e-3, 1e-12):
        factor = _factor(matrix, shift, order)
        while shift > safe and (factor is None or (factor.U.diagonal() < 0).sum() > num_known):
            shift = (shift + safe) / 2 if shift - safe > rounding else safe
            factor = _factor(matrix, shift, order)
        safe = shift

        def inverse(vector: np.ndarray, factor: linalg.SuperLU = factor) -> np.ndarray:
            solution = np.empty_like(vector)
            solution[order] = factor.solve(_outside(known, vector)[order])
            return _outside(known, solution)

        (value,), vectors = linalg.eigsh(
            matrix, 1, sigma=shift, which='LA', tol=tolerance, maxiter=500, v0=_start(known),
            OPinv=linalg.LinearOperator((n, n), matvec=inverse, dtype=float))
        residual = float(np.linalg.norm(matrix @ vectors[:, 0] - value * vectors[:, 0]))
        shift = max(float(value) - 2 * residual - rounding, safe)
    return vectors[:, 0], safe


def _factor(matrix: sp.csr_array, shift: float, order: np.ndarray) -> linalg.SuperLU | None:
    """Factor P (matrix - shift I) P^T = L U without pivoting, so that L stays inside the envelope
    of the matrix."""
    shifted = (matrix - shift * sp.eye_array(matrix.shape[0])).tocsr()[order][:, order]
    try:
        factor = linalg.splu(shifted.tocsc(), permc_spec='NATURAL', diag_pivot_thresh=0,
                             options={'SymmetricMode': True})
    except RuntimeError:  # a pivot is 0
        return None
    # Close to an eigenvalue of a leading submatrix, such as any multiple eigenvalue, a pivot is 0
    # or later entries grow without bound, and rounding may flip the sign of a pivot.
    return factor if abs(factor.U).max() <= _MAX_GROWTH * abs(shifted).max() else None


def _band_order(matrix: sp.csr_array) -> np.ndarray | None:
    """Return an order of the nodes in which the matrix is cheap to factor, int ``[n]``, or
    ``None``."""
    # reverse Cuthill-McKee, with hubs last, because hubs are joined to most nodes
    row_entries = np.diff(matrix.indptr)
    is_hub = row_entries > 8 * np.median(row_entries)
    others, hubs = np.flatnonzero(~is_hub), np.flatnonzero(is_hub)
    band = csgraph.reverse_cuthill_mckee(sp.csr_array(matrix[others][:, others]),
                                         symmetric_mode=True)
    order = np.concatenate([others[band], hubs])
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    first, filled = place.copy(), np.flatnonzero(row_entries)  # reduceat needs non-empty segments
    first[filled] = np.minimum.reduceat(place[matrix.indices], matrix.indptr[filled])
    # width of each row of the envelope, which includes all fill-in
    width = np.maximum(place - first, 0).astype(float)
    return order if width @ width <= _FACTOR_WORK else None


def _outside(null_space: sp.csc_array, vectors: np.ndarray) -> np.ndarray:
    return vectors - null_space @ (null_space.T @ vectors)


def _start(null_space: sp.csc_array) -> np.ndarray:
    return _outside(null_space, np.random.default_rng(0).standard_normal(null_space.shape[0]))
