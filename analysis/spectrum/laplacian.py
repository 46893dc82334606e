"""The Laplacian of a graph, and its eigenpairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse import csgraph

from analysis.spectrum.extremes import smallest_outside

LaplacianKind = Literal['normalized', 'combinatorial']
# Up to this number of nodes, all eigenvalues take seconds, without iteration.
_DENSE_NODES = 2048


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
        self.null_space = self._null_space(weight)

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

    def _null_space(self, weight: np.ndarray) -> sp.csc_array:
        norm = np.sqrt(np.bincount(self.component, weights=weight**2))
        return sp.csc_array((weight / norm[self.component],
                             (np.arange(self.num_nodes), self.component)))


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
