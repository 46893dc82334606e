"""How the eigenvalues of an attention graph are spread.

::

    python -m analysis.spectrum
    python -m analysis.spectrum --pattern bigbird diffuser 'SlidingWindow(64)' --n 2048
    python -m analysis.spectrum --pattern diffuser --n 65536 --extremes 2
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from matplotlib.figure import Figure
from scipy.sparse import csgraph, linalg

from analysis.adjacency import Symmetrization, symmetric_adjacency
from analysis.command import ask
from analysis.graphs import GraphLike, as_graph
from analysis.result import Result
from graphattn import BipartiteGraph

LaplacianKind = Literal['normalized', 'combinatorial']

# Up to here all eigenvalues at once take seconds, and nothing has to converge.
_DENSE_NODES = 2048
# A float64 matrix, its eigenvectors and LAPACK's work space are 0.5 GB here, and grow by n^2.
_FULL_NODES = 4096
# Multiplications of a sparse factorisation: a few seconds. Its memory is then small too.
_FACTOR_WORK = 2e9
# Of an eigenpair's residual, in units of the mean eigenvalue.
_ACCURACY = 1e-9


@dataclass(frozen=True)
class Spectrum(Result):
    """Eigenvalues or singular values, each with its residual.

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
        residuals (ndarray): float64 ``[num_values]``, :math:`\\|L v - \\lambda v\\|` for the
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
    r"""The eigenvalues of a graph's Laplacian, or its singular values if it is not square.

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
        ValueError: An argument is out of range, the graph has no nodes, or it has more than
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


@dataclass(frozen=True)
class Eigenpairs:
    """Ascending eigenvalues ``[k]`` with eigenvectors ``[n, k]``, residuals ``[k]``, and how they
    were found."""

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    method: str


class Laplacian:
    r"""A Laplacian whose null space is known, and what finds its other eigenpairs.

    The null space is that of the connected components: :math:`D^{1/2} 1_C` or :math:`1_C` for
    each component C. It is projected away, so that no solver mistakes a small eigenvalue for 0.
    ``eigsh(which='SM')`` does: for a window on 1,024 tokens it returns four times lambda_2.

    Args:
        adjacency (sparse array): Symmetric and not negative, ``[n, n]``.
        kind (str): normalized or combinatorial.

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
        self.null_space = self._null_space(weight)

    @cached_property
    def mean(self) -> float:
        """Of the eigenvalues outside the null space."""
        return self.matrix.trace() / max(self.num_nodes - self.num_components, 1)

    def all(self) -> Eigenpairs:
        """Every eigenpair, from the dense matrix."""
        values, vectors = scipy.linalg.eigh(self.matrix.toarray(), overwrite_a=True,
                                            check_finite=False)
        zeros = slice(0, self.num_components)
        values[zeros], vectors[:, zeros] = 0, self.null_space.toarray()
        return self._pairs(values, vectors, 'dense')

    def smallest(self, count: int) -> Eigenpairs:
        """The ``count`` smallest, the exact zeros among them."""
        if self.num_nodes <= _DENSE_NODES:
            return self._part_of_all(slice(0, count))
        null_space = self.null_space[:, :count].toarray()
        missing = count - null_space.shape[1]
        if missing == 0:
            return self._pairs(np.zeros(count), null_space, 'components')
        vectors, method = _smallest_outside(self.matrix, self.null_space, missing, self.mean)
        values = np.concatenate([np.zeros(null_space.shape[1]), self._quotients(vectors)])
        return self._pairs(values, np.hstack([null_space, vectors]), method)

    def largest(self, count: int) -> Eigenpairs:
        """The ``count`` largest."""
        if self.num_nodes <= _DENSE_NODES:
            return self._part_of_all(slice(self.num_nodes - count, self.num_nodes))
        if self.num_components == self.num_nodes:
            return self.smallest(count)
        flipped = sp.csr_array(self.bound * sp.eye_array(self.num_nodes) - self.matrix)
        nothing = self.null_space[:, :0]
        vectors, method = _smallest_outside(flipped, nothing, count, self.mean)
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

    def _null_space(self, weight: np.ndarray) -> sp.csc_array:
        norm = np.sqrt(np.bincount(self.component, weights=weight**2))
        return sp.csc_array((weight / norm[self.component],
                             (np.arange(self.num_nodes), self.component)))


def describe_symmetrization(graph: BipartiteGraph, symmetrization: str) -> str:
    """The name of the symmetrisation, or that the graph needed none."""
    adjacency = graph.to_scipy()
    is_symmetric = (adjacency != adjacency.T.tocsr()).nnz == 0
    return 'not needed' if is_symmetric else symmetrization


def draw(results: dict[str, list[Spectrum]]) -> Figure:
    """Sorted values on the left, as in Diffuser's Fig. S.8, and how they are spread."""
    figure = Figure(figsize=(9, 4), layout='constrained')
    curves, counts = figure.subplots(1, 2)
    pooled = {label: np.concatenate([sample.values for sample in samples])
              for label, samples in results.items()}
    top = max(values.max() for values in pooled.values())
    bins = np.linspace(0, max(top, 1e-12) * 1.02, 61)
    for place, (label, samples) in enumerate(results.items()):
        color = f'C{place}'
        for number, sample in enumerate(samples):
            has_gaps = bool((np.diff(sample.index) > 1).any())
            curves.plot(sample.index, sample.values, 'o' if has_gaps else '-', color=color,
                        markersize=4, linewidth=1.6 if len(samples) == 1 else 0.7,
                        label=label if number == 0 else None)
        share = np.full(pooled[label].size, 1 / pooled[label].size)
        counts.hist(pooled[label], bins, weights=share, histtype='step', color=color,
                    linewidth=1.4, label=label)
    matrices = ', '.join(dict.fromkeys(sample.matrix for samples in results.values()
                                       for sample in samples))
    kind = 'singular value' if matrices.startswith('D_q') else 'eigenvalue'
    curves.set(title=matrices, xlabel='index, in sorted order', ylabel=kind)
    counts.set(title='how they are spread', xlabel=kind, ylabel=f'share of the {kind}s shown',
               yscale='log')
    for axes in (curves, counts):
        axes.grid(alpha=0.3)
    figure.legend(*curves.get_legend_handles_labels(), loc='outside lower center',
                  ncols=min(len(results), 4))
    return figure


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    ask(spectrum, draw, arguments, name='spectrum')


def _check(graph: BipartiteGraph, extremes: int | None) -> None:
    smaller_side = min(graph.num_queries, graph.num_keys)
    if smaller_side == 0:
        raise ValueError(f"'graph' must have at least one token (got {graph})")
    if extremes is None and smaller_side > _FULL_NODES:
        raise ValueError(f"'graph' is too large for all its eigenvalues (got {smaller_side} "
                         f"tokens, at most {_FULL_NODES}); ask for some at both ends: extremes=6, "
                         f"or --extremes 6")
    if extremes is not None and extremes < 2:
        raise ValueError(f"'extremes' must be at least 2, for lambda_2 is the second (got "
                         f"{extremes})")


def _scaled_difference(adjacency: sp.csr_array, degree: np.ndarray, scale: np.ndarray
                       ) -> sp.csr_array:
    """S (D - A) S for S = diag(scale), with 32-bit indices, half of what a product reads."""
    difference = sp.csr_array(sp.diags_array(degree) - adjacency)
    row = np.repeat(np.arange(degree.size, dtype=np.int32), np.diff(difference.indptr))
    data = difference.data * scale[row]
    data *= scale[difference.indices]
    indices, indptr = (part.astype(np.int32) if difference.nnz < 2**31 else part
                       for part in (difference.indices, difference.indptr))
    return sp.csr_array((data, indices, indptr), shape=difference.shape)


def _smallest_outside(matrix: sp.csr_array, null_space: sp.csc_array, count: int, mean: float
                      ) -> tuple[np.ndarray, str]:
    """Eigenvectors ``[n, count]`` of the smallest eigenvalues outside a known null space.

    Args:
        matrix: Symmetric, without negative eigenvalues.
        null_space: Orthonormal, ``[n, c]``; may have no columns.
        count: Number of eigenpairs.
        mean: The size of an eigenvalue, to which the accuracy is relative.
    """
    order = _band_order(matrix)
    if order is None:
        return _lanczos(matrix, null_space, count, mean), 'Lanczos'
    return _shift_invert(matrix, null_space, count, mean, order), 'shift-invert'


def _lanczos(matrix: sp.csr_array, null_space: sp.csc_array, count: int, mean: float
             ) -> np.ndarray:
    """Of the matrix upside down, where the smallest are the largest: what ARPACK finds safely.

    The null space goes to the other end. A few more pairs than asked for, and a large subspace,
    pay where the wanted end is crowded or hubs stand far off at the other.
    """
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
    """One eigenvector after the other, each outside those that are known."""
    known, shift = null_space, -1e-8 * mean
    for _ in range(count):
        vector, shift = _next_above(matrix, known, shift, order)
        known = sp.hstack([known, sp.csc_array(vector[:, None])], format='csc')
    return known[:, null_space.shape[1]:].toarray()


def _next_above(matrix: sp.csr_array, known: sp.csc_array, shift: float, order: np.ndarray
                ) -> tuple[np.ndarray, float]:
    """The eigenvector of the smallest eigenvalue outside ``known``, and a shift just below it.

    By the inverse of the matrix less a shift, which moves up until eigenvalues that crowd together
    are far apart. The pivots have the signs of the eigenvalues (Sylvester's law of inertia), so a
    shift that has passed an unknown one is seen, and taken back half of the way.
    """
    n, num_known = known.shape
    rounding = 1e-12 * float(abs(matrix).sum(axis=1).max())
    safe = shift
    for tolerance in (1e-3, 1e-3, 1e-12):
        factor = _factor(matrix, shift, order)
        while shift > safe and (factor.U.diagonal() < 0).sum() > num_known:
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


def _factor(matrix: sp.csr_array, shift: float, order: np.ndarray) -> linalg.SuperLU:
    """P (matrix - shift I) P^T = L U without pivoting, so that L stays inside the envelope."""
    shifted = (matrix - shift * sp.eye_array(matrix.shape[0])).tocsr()[order][:, order]
    return linalg.splu(shifted.tocsc(), permc_spec='NATURAL', diag_pivot_thresh=0,
                       options={'SymmetricMode': True})


def _band_order(matrix: sp.csr_array) -> np.ndarray | None:
    """An order of the nodes in which the matrix is cheap to factor, if there is one.

    Reverse Cuthill-McKee, with hubs last: they would join everything to everything.
    """
    row_entries = np.diff(matrix.indptr)
    is_hub = row_entries > 8 * np.median(row_entries)
    others, hubs = np.flatnonzero(~is_hub), np.flatnonzero(is_hub)
    band = csgraph.reverse_cuthill_mckee(sp.csr_array(matrix[others][:, others]),
                                         symmetric_mode=True)
    order = np.concatenate([others[band], hubs])
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    first = np.minimum.reduceat(place[matrix.indices], matrix.indptr[:-1])
    width = np.maximum(place - first, 0).astype(float)  # of the envelope, which holds all fill-in
    return order if width @ width <= _FACTOR_WORK else None


def _outside(null_space: sp.csc_array, vectors: np.ndarray) -> np.ndarray:
    return vectors - null_space @ (null_space.T @ vectors)


def _start(null_space: sp.csc_array) -> np.ndarray:
    """The same first vector every time, for the same graph must give the same result."""
    return _outside(null_space, np.random.default_rng(0).standard_normal(null_space.shape[0]))


def _singular_values(graph: BipartiteGraph, extremes: int | None) -> Spectrum:
    adjacency = graph.to_scipy()
    joined = sp.csr_array(sp.block_array([[None, adjacency], [adjacency.T, None]]))
    count = min(graph.num_queries, graph.num_keys)
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


def _all_singular_values(adjacency: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    query_degree, key_degree = (np.maximum(adjacency.sum(axis=axis), 1) for axis in (1, 0))
    matrix = adjacency.toarray() / np.sqrt(np.outer(query_degree, key_degree))
    left, values, right = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
    errors = matrix @ right.T - left * values, matrix.T @ left - right.T * values
    return values, np.linalg.norm(np.vstack(errors), axis=0) / np.sqrt(2)


def _largest_singular_values(joined: sp.csr_array, count: int
                             ) -> tuple[np.ndarray, np.ndarray, str]:
    """1 - lambda of the graph that joins queries to keys; an isolated node only adds zeros."""
    has_edge = joined.sum(axis=1) > 0
    if not has_edge.any():
        return np.zeros(count), np.zeros(count), 'components'
    pairs = Laplacian(sp.csr_array(joined[has_edge][:, has_edge])).smallest(count)
    values = np.maximum(1 - pairs.values, 0)
    return values, pairs.residuals, pairs.method


if __name__ == '__main__':
    main()
