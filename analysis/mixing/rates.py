"""Convergence rates of a random walk: its second eigenvalue and its second singular value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

from analysis.walk import MOVED, component_eigenvalues

_MAX_SYMMETRIC = 2048  # maximum number of tokens for all eigenvalues in seconds
_MAX_GENERAL = 1024
_CERTAIN = 1e-6  # required accuracy of a modulus


def second_of_reversible(walk: sp.csr_array, stationary: np.ndarray) -> float | None:
    """Return the second largest modulus of the eigenvalues of a reversible random walk, given its
    stationary distribution. Return ``None`` if the iteration does not converge."""
    n, root = len(stationary), np.sqrt(stationary)
    similar = sp.csr_array(sp.diags_array(root) @ walk @ sp.diags_array(1 / root))
    if n <= _MAX_SYMMETRIC:
        modulus = np.sort(np.abs(np.linalg.eigvalsh(similar.toarray())))
        return float(modulus[-2]) if n > 1 else 0.
    return _norm_without(root, similar.dot)


def second_modulus(walk: sp.csr_array, component: np.ndarray) -> float | None:
    """Return the second largest modulus of the eigenvalues of any random walk, given the strongly
    connected component of each token. Return ``None`` if rounding errors may change the modulus by
    more than ``_CERTAIN``."""
    if np.bincount(component).max() <= _MAX_GENERAL:
        second, when_moved = (_second(component_eigenvalues(walk, component, moved))
                              for moved in (0., MOVED))
        return second if abs(second - when_moved) <= _CERTAIN else None
    if component.max() > 0:
        return None
    try:
        (value, right), (other, left) = map(_second_pair, (walk, walk.T.tocsr()))
    except ArpackNoConvergence:
        return None
    if abs(other.conjugate() - value) < abs(other - value):
        left = left.conj()
    residual = np.linalg.norm(walk @ right - value * right)
    error = (residual + np.finfo(float).eps) / max(abs(left @ right), np.finfo(float).tiny)
    is_certain = max(error, abs(abs(value) - abs(other))) <= _CERTAIN
    return float(abs(value)) if is_certain else None


def _second(values: np.ndarray) -> float:
    return float(abs(values[1])) if len(values) > 1 else 0.


def _second_pair(walk: sp.csr_array) -> tuple[complex, np.ndarray]:
    """Return the eigenvalue of the walk with the second largest modulus, and its eigenvector."""
    # The next eigenvalues may be close by, so full precision might take hours.
    values, vectors = eigs(walk, k=2, which='LM', v0=_some_vector(walk.shape[0]), ncv=60,
                           tol=_CERTAIN / 1000, maxiter=100)  # eigenvectors may be oblique
    second = np.argsort(-np.abs(values), kind='stable')[1]
    return values[second], vectors[:, second]


def contraction(walk: sp.csr_array, stationary: np.ndarray) -> float | None:
    r"""Return the second singular value of :math:`\Pi^{1/2} P \, \Pi^{-1/2}` for a walk P with
    stationary distribution :math:`\pi`, or ``None`` if :math:`\pi` has zeros or has lost digits to
    underflow."""
    if stationary.min() < np.finfo(float).tiny:
        return None
    root = np.sqrt(stationary)
    similar = sp.csr_array(sp.diags_array(root) @ walk @ sp.diags_array(1 / root))
    if len(root) <= _MAX_GENERAL:
        values = scipy.linalg.svdvals(similar.toarray())
        return float(values[1]) if len(values) > 1 else 0.
    square = _norm_without(root, lambda vector: similar.T @ (similar @ vector))
    return None if square is None else math.sqrt(square)


def _norm_without(top: np.ndarray, product: Callable[[np.ndarray], np.ndarray]) -> float | None:
    """Return the largest modulus of the eigenvalues of a symmetric operator, except for its
    eigenvalue 1 with the eigenvector ``top``. Return ``None`` if the iteration does not converge.
    ``product`` multiplies the operator by a vector."""
    deflated = LinearOperator((len(top), len(top)), dtype=float,
                              matvec=lambda vector: product(vector) - top * (top @ vector))
    try:
        value = eigsh(deflated, k=1, which='LM', v0=_some_vector(len(top)), ncv=60, maxiter=300,
                      return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(abs(value[0]))


def _some_vector(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)
