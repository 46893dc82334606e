"""Eigenvalues of an attention graph's Laplacian."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse import csgraph, linalg

from analysis.graphs import (
    GraphLike,
    Symmetrization,
    adjacency_of,
    check_count,
    describe_symmetrization,
    symmetrize,
)
from analysis.result import Result

__all__ = ['Eigenpairs', 'Laplacian', 'LaplacianKind', 'Spectrum', 'spectrum']

# A float64 matrix of this size, its eigenvectors and LAPACK's workspace take 0.5 GB, which grows as
# n^2.
FULL_NODES = 4096
LaplacianKind = Literal['normalized', 'combinatorial']
# Up to this number of nodes, all eigenvalues take seconds, without iteration.
_DENSE_NODES = 2048
# Maximum number of multiplications of a sparse factorisation: a few seconds, with little memory.
_FACTOR_WORK = 2e9
# Wanted residual of an eigenpair, relative to the mean eigenvalue.
_ACCURACY = 1e-9
# Largest accepted residual of an eigenvector, relative to the mean eigenvalue.
_MAX_ERROR = 1e-7
# Largest growth of the entries in a factorisation; its rounding errors are then about 1e-12 of the
# matrix.
_MAX_GROWTH = 1e4


@dataclass(frozen=True)
class Spectrum(Result):
    """The eigenvalues or singular values of a graph, with their residuals."""

    ONLY = {'if there are as many keys as queries, two or more': ('lambda_2', 'lambda_max'),
            'if the numbers of keys and queries differ': ('sigma_2',)}
    matrix: str  #: The name of the matrix that has these values.
    symmetrization: str  #: How an edge without its reverse was treated.
    #: Number of connected components, isolated nodes included. It is the multiplicity of a
    #: Laplacian's eigenvalue 0.
    num_components: int
    #: The second smallest eigenvalue, counted with multiplicity. It is exactly 0 if the graph is
    #: not connected, and ``None`` if the graph has one node.
    lambda_2: float | None
    lambda_max: float | None  #: The largest eigenvalue.
    sigma_2: float | None  #: The second largest singular value, if there are two.
    max_residual: float  #: The largest of ``residuals``.
    #: ``dense``, ``shift-invert`` or ``Lanczos``. If the two ends of the spectrum use different
    #: methods, both are named.
    method: str
    #: int ``[num_values]``, the index of each value among all eigenvalues or singular values, in
    #: the same order.
    index: np.ndarray
    values: np.ndarray  #: float64 ``[num_values]``; eigenvalues ascend, singular values descend.
    #: float64 ``[num_values]``, :math:`\|L v - \lambda v\|` for the computed eigenvector v of norm
    #: 1. The matrix has an eigenvalue within this distance of the value.
    residuals: np.ndarray

    @property
    def gap(self) -> float | None:
        """The spectral gap of a Laplacian, ``lambda_2``."""
        return self.lambda_2


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
        graph: See :func:`analysis.graphs.adjacency_of`.
        laplacian: normalized or combinatorial; ignored if the numbers of keys and queries differ.
        symmetrization: The treatment of an edge without its reverse: union, mean or intersection,
            see :func:`analysis.graphs.symmetric_adjacency`.
        extremes: Number of eigenvalues to compute at each end, or of largest singular values,
            instead of all; at least 2.
        weights: Whether to use the weights of edges instead of 1, see
            :func:`analysis.graphs.adjacency_of`.

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
        values, residuals = _all_singular_values(adjacency)
        method = 'dense'
    else:
        values, residuals, method = _largest_singular_values(joined, extremes)
    return Spectrum(
        matrix='D_q^-1/2 A D_k^-1/2', symmetrization='not needed', num_components=num_components,
        lambda_2=None, lambda_max=None, sigma_2=float(values[1]) if values.size > 1 else None,
        max_residual=float(residuals.max()), method=method, index=np.arange(values.size),
        values=values, residuals=residuals)


@dataclass(frozen=True)
class Eigenpairs:
    """The ascending eigenvalues ``[k]``, eigenvectors ``[n, k]`` and residuals ``[k]`` of a matrix,
    and the name of the method that computed them."""

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    method: str


class Laplacian:
    r"""A Laplacian of a graph, with methods that compute its eigenvalues and eigenvectors.

    The null space of the Laplacian is known, because it is spanned by :math:`D^{1/2} 1_C` or
    :math:`1_C` for each connected component C.

    The null space is projected out, so that no solver mistakes a small eigenvalue for 0.
    ``eigsh(which='SM')`` makes this mistake: for a window on 1,024 tokens it returns four times
    lambda_2.

    Args:
        adjacency (sparse array): Symmetric, non-negative ``[n, n]``.
        kind (str): ``'normalized'`` or ``'combinatorial'``.

    Raises:
        ValueError: ``kind`` is unknown.
    """

    def __init__(self, adjacency: sp.csr_array, kind: LaplacianKind = 'normalized'):
        if kind not in get_args(LaplacianKind):
            raise ValueError(f"'laplacian' must be one of {get_args(LaplacianKind)} (got "
                             f"{kind!r})")
        self.num_nodes = adjacency.shape[0]
        self.degree = adjacency.sum(axis=1)
        self.is_regular = bool(self.degree.min() == self.degree.max())
        self.num_components, self.component = csgraph.connected_components(adjacency,
                                                                          directed=False)
        is_normalized = kind == 'normalized'
        scale = np.zeros(self.num_nodes) if is_normalized else np.ones(self.num_nodes)
        if is_normalized:
            np.power(self.degree, -0.5, where=self.degree > 0, out=scale)
        self.matrix = _scaled_difference(adjacency, self.degree, scale)
        self.bound = 2. if is_normalized else 2 * float(self.degree.max())
        weight = np.where(self.degree > 0, np.sqrt(self.degree), 1) if is_normalized else scale
        norm = np.sqrt(np.bincount(self.component, weights=weight**2))
        self.null_space = sp.csc_array((weight / norm[self.component],
                                        (np.arange(self.num_nodes), self.component)))

    @cached_property
    def mean(self) -> float:
        """Return the mean of the eigenvalues of the Laplacian outside its null space."""
        return self.matrix.trace() / max(self.num_nodes - self.num_components, 1)

    def all(self) -> Eigenpairs:
        """Return all eigenpairs of the Laplacian, computed from the dense matrix."""
        values, vectors = scipy.linalg.eigh(self.matrix.toarray(), overwrite_a=True,
                                            check_finite=False)
        zeros = slice(0, self.num_components)
        values[zeros], vectors[:, zeros] = 0, self.null_space.toarray()
        return self._pairs(values, vectors, 'dense')

    def smallest(self, count: int) -> Eigenpairs:
        """Return the ``count`` smallest eigenpairs of the Laplacian, including the exact zeros."""
        if self.num_nodes <= _DENSE_NODES:
            return self._part_of_all(slice(0, count))
        null_space = self.null_space[:, :count].toarray()
        missing = count - null_space.shape[1]
        if missing == 0:
            return self._pairs(np.zeros(count), null_space, 'components')
        vectors, method = smallest_outside(self.matrix, self.null_space, missing, self.mean)
        values = np.concatenate([np.zeros(null_space.shape[1]), self._quotients(vectors)])
        return self._pairs(values, np.hstack([null_space, vectors]), method)

    def largest(self, count: int) -> Eigenpairs:
        """Return the ``count`` largest eigenpairs of the Laplacian."""
        if self.num_nodes <= _DENSE_NODES:
            return self._part_of_all(slice(self.num_nodes - count, self.num_nodes))
        if self.num_components == self.num_nodes:
            return self.smallest(count)
        flipped = sp.csr_array(self.bound * sp.eye_array(self.num_nodes) - self.matrix)
        nothing = self.null_space[:, :0]
        vectors, method = smallest_outside(flipped, nothing, count, self.mean)
        return self._pairs(self._quotients(vectors), vectors, method)

    @cached_property
    def _all(self) -> Eigenpairs:
        return self.all()

    def _part_of_all(self, part: slice) -> Eigenpairs:
        pairs = self._all
        return Eigenpairs(pairs.values[part], pairs.vectors[:, part], pairs.residuals[part],
                          pairs.method)

    def _quotients(self, vectors: np.ndarray) -> np.ndarray:
        return np.einsum('nk,nk->k', vectors, self.matrix @ vectors)

    def _pairs(self, values: np.ndarray, vectors: np.ndarray, method: str) -> Eigenpairs:
        order = np.argsort(values, kind='stable')
        values, vectors = values[order], vectors[:, order]
        residuals = np.linalg.norm(self.matrix @ vectors - vectors * values, axis=0)
        return Eigenpairs(values, vectors, residuals, method)


def _scaled_difference(adjacency: sp.csr_array, degree: np.ndarray, scale: np.ndarray
                       ) -> sp.csr_array:
    """Return the matrix S (D - A) S for the adjacency A, the degrees D and S = diag(scale), with
    32-bit indices to halve the memory traffic."""
    difference = sp.csr_array(sp.diags_array(degree) - adjacency)
    row = np.repeat(np.arange(degree.size, dtype=np.int32), np.diff(difference.indptr))
    data = difference.data * scale[row]
    data *= scale[difference.indices]
    indices, indptr = (part.astype(np.int32) if difference.nnz < 2**31 else part
                       for part in (difference.indices, difference.indptr))
    return sp.csr_array((data, indices, indptr), shape=difference.shape)


def join_queries_to_keys(adjacency: sp.csr_array) -> sp.csr_array:
    """Return the symmetric adjacency matrix of the graph that joins queries, which come first, to
    keys."""
    return sp.csr_array(sp.block_array([[None, adjacency], [adjacency.T, None]]))


def _all_singular_values(adjacency: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return all singular values of :math:`D_q^{-1/2} A D_k^{-1/2}` for an adjacency matrix A
    ``[query, key]``, and their residuals, as two float64 arrays."""
    query_degree, key_degree = (adjacency.sum(axis=axis) for axis in (1, 0))
    matrix = adjacency.toarray()
    matrix /= np.sqrt(np.where(query_degree > 0, query_degree, 1))[:, None]
    matrix /= np.sqrt(np.where(key_degree > 0, key_degree, 1))
    left, values, right = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
    errors = matrix @ right.T - left * values, matrix.T @ left - right.T * values
    return values, np.linalg.norm(np.vstack(errors), axis=0) / np.sqrt(2)


def _largest_singular_values(joined: sp.csr_array, count: int
                            ) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the ``count`` largest singular values of :math:`D_q^{-1/2} A D_k^{-1/2}`, their
    residuals and the name of the method."""
    # A singular value is 1 minus an eigenvalue of the Laplacian of ``joined``, the graph of
    # :func:`join_queries_to_keys`. Isolated nodes only add zeros.
    has_edge = joined.sum(axis=1) > 0
    if not has_edge.any():
        return np.zeros(count), np.zeros(count), 'components'
    pairs = Laplacian(sp.csr_array(joined[has_edge][:, has_edge])).smallest(count)
    values = np.maximum(1 - pairs.values, 0)
    return values, pairs.residuals, pairs.method


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
    each orthogonal to the null space and to the eigenvectors before."""
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
