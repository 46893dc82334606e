"""Eigenvectors of the smallest eigenvalues of the normalised Laplacian of a graph."""

from __future__ import annotations

import math
import warnings

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch
from scipy.sparse import csgraph
from torch import Tensor

# Products of the matrix and a block of vectors, a minute or two for 100,000 nodes.
MAX_PRODUCTS = 100_000
MAX_EIGENVALUE = 2.  # of any normalised Laplacian
TOLERANCE = 1e-8  # largest residual, relative to the largest of the wanted eigenvalues
ROUNDING = 1e-14  # residual that cannot be reduced further
# Amplification by a filter, as powers of e: of the last wanted vector, of any vector compared with
# the cut, and of rounding errors before they are removed. The largest float32 is e^88.
GAIN, MAX_GAIN, MAX_ERROR, OVERFLOW = 7., 14., 10., 80.
# Minimum distance of a cut above the last wanted eigenvalue, needed if the multiplicity of this
# eigenvalue exceeds the size of the block.
MIN_DISTANCE = 1e-3


class NotConverged(RuntimeError):
    """Raised by :func:`smallest_eigenvectors` if the eigenvectors are not precise enough."""


def smallest_eigenvectors(laplacian: sp.csr_array, null_space: sp.csr_array, count: int
                          ) -> np.ndarray:
    r"""Return orthonormal eigenvectors of the smallest eigenvalues of ``laplacian`` outside its
    null space, ``[n, count]``.

    The method is Chebyshev-filtered subspace iteration on a block of vectors. A polynomial of the
    matrix amplifies the eigenvectors whose eigenvalues lie below a cut. Then the best
    approximations of eigenvalues in the subspace of the block are computed, and the largest
    approximation is the next cut. Approximations in a subspace bound the eigenvalues from above, so
    at least as many eigenvalues lie below the cut as the block has columns.

    The polynomial is computed in float32, but the result has the precision of float64. This is
    possible because the polynomial is applied to the residuals, which are computed in float64, and
    returns corrections of the vectors.

    Args:
        laplacian (sparse array): Normalised Laplacian ``[n, n]`` with its diagonal, float64.
        null_space (sparse array): Orthonormal basis ``[n, c]`` of the null space.
        count (int): Number of eigenvectors, far below n.

    Returns:
        float64 array ``[n, count]``, by ascending eigenvalue. Every residual is at most ``1e-8``
        times the last eigenvalue, or ``1e-14`` if that is larger.

    Raises:
        NotConverged: Residuals are too large after ``MAX_PRODUCTS`` products.

    Source: Zhou et al., "Self-consistent-field calculations using Chebyshev-filtered subspace
    iteration" (2006).
    """
    # This order brings neighbours close together in memory.
    order = csgraph.reverse_cuthill_mckee(laplacian, symmetric_mode=True)
    laplacian = sp.csr_array(laplacian[order][:, order])
    laplacian.sort_indices()  # sorted here, because scipy would otherwise sort in later steps
    null_space = sp.csr_array(null_space[order])
    matrix, outside = _as_tensor(laplacian), _Outside(null_space, torch.double)
    filtering = _Filter(laplacian, null_space)
    width, products = count + max(8, count // 2), 0
    start = np.random.default_rng(0).standard_normal((len(order), width))
    block = torch.from_numpy(start)
    while True:
        values, block, residual = _rayleigh_ritz(matrix, outside(block))
        error = residual.norm(dim=0)
        excess = float(error[:count].max()) / max(TOLERANCE * float(values[count - 1]), ROUNDING)
        if excess <= 1:
            break
        if not products < MAX_PRODUCTS:
            raise NotConverged(f"residuals are {excess:.1g} times too large after {products} "
                               f"products")
        gain = min(GAIN, 1 + math.log(excess))
        correction, degree = filtering(values, residual, float(error[0]), count, gain)
        block += correction
        products += degree
    vectors = np.empty((len(order), count))
    vectors[order] = block[:, :count]
    return vectors


def _rayleigh_ritz(matrix: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best approximations of eigenpairs of ``matrix`` in the subspace of ``block``, as
    three tensors: the eigenvalues, their orthonormal vectors, and the residuals."""
    image = matrix @ block
    values, mix = scipy.linalg.eigh((block.T @ image).numpy(), (block.T @ block).numpy())
    values, mix = torch.from_numpy(values), torch.from_numpy(mix)
    block, image = block @ mix, image @ mix
    return values, block, image.sub_(block * values)


class _Filter:
    """Chebyshev filter that corrects approximate eigenvectors of the Laplacian: a call returns the
    corrections to add. The polynomial is bounded by 1 from the cut to the largest eigenvalue, and
    grows exponentially below the cut."""

    def __init__(self, laplacian: sp.csr_array, null_space: sp.csr_array):
        self.matrix = laplacian.astype(np.float32)
        row = np.repeat(np.arange(laplacian.shape[0]), np.diff(laplacian.indptr))
        self.diagonal = np.flatnonzero(row == laplacian.indices)
        self.outside = _Outside(null_space, torch.float)

    def __call__(self, values: Tensor, residual: Tensor, error: float, count: int, gain: float
                 ) -> tuple[Tensor, int]:
        """Return the corrections of approximate eigenvectors, ``[n, width]``, and the degree of the
        polynomial.

        Args:
            values (Tensor): Approximate eigenvalues, ascending, ``[width]``.
            residual (Tensor): Residuals of the approximate eigenvectors, ``[n, width]``.
            error (float): Bound on the distance of the first value from an eigenvalue.
            count (int): Number of wanted eigenvectors, the first ones.
            gain (float): The last wanted eigenvector is amplified by about ``exp(gain)``, or by
                less if another eigenvector would be amplified too much.
        """
        last = float(values[count - 1])
        cut = max(float(values[-1]), (1 + MIN_DISTANCE) * last)
        centre, radius = (MAX_EIGENVALUE + cut) / 2, (MAX_EIGENVALUE - cut) / 2

        def growth(value: float) -> float:
            """Return the power of e by which each degree of the polynomial amplifies an eigenvector
            with the eigenvalue ``value``."""
            return math.acosh(max((centre - value) / radius, 1 + 1e-12))

        lowest = max(float(values[0]) - 2 * error, 0)
        degree = int(min(gain / growth(last), MAX_GAIN / growth(lowest), OVERFLOW / growth(0)))
        degree = max(degree, 2)
        between = max(int(MAX_ERROR / growth(0)), 1)
        scaled = self.matrix.copy()
        scaled.data /= -radius
        scaled.data[self.diagonal] += centre / radius
        return self._correction(_as_tensor(scaled), (centre - values) / radius,
                                residual / -radius, degree, between), degree

    def _correction(self, matrix: Tensor, value: Tensor, residual: Tensor, degree: int,
                    between: int) -> Tensor:
        r"""Return the correction :math:`T_d(M) x / T_d(\mu) - x` of each approximate eigenvector x.

        The vectors :math:`e_i = T_i(M) x - T_i(\mu) x` satisfy the recurrence of the Chebyshev
        polynomials :math:`T_i`, with the additional term :math:`2 T_i(\mu) (M x - \mu x)`.

        Args:
            matrix (Tensor): M, the Laplacian scaled so that the interval above the cut is [-1, 1].
            value (Tensor): The eigenvalue :math:`\mu` of each vector, in the same scale.
            residual (Tensor): The residual :math:`M x - \mu x` of each vector.
            degree (int): The degree d.
            between (int): Number of steps after which rounding errors in the null space are
                removed.
        """
        double = (2 * residual).float()
        before, now = torch.zeros_like(double), residual.float()
        scale_before, scale = torch.ones_like(value), value
        for step in range(1, degree):
            torch.addmm(before, matrix, now, beta=-1, alpha=2, out=before)
            before.addcmul_(double, scale.float())
            before, now = now, before
            scale_before, scale = scale, 2 * value * scale - scale_before
            if step % between == 0:
                before, now = self.outside(before), self.outside(now)
        return now / scale


class _Outside:
    """Projection of the columns of a block onto the orthogonal complement of a null space."""

    def __init__(self, null_space: sp.csr_array, dtype: torch.dtype):
        self.basis = _as_tensor(null_space, dtype)
        self.transposed = _as_tensor(sp.csr_array(null_space.T), dtype)

    def __call__(self, block: Tensor) -> Tensor:
        return block - self.basis @ (self.transposed @ block)


def _as_tensor(matrix: sp.csr_array, dtype: torch.dtype | None = None) -> Tensor:
    parts = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='Sparse CSR tensor support is in beta')
        return torch.sparse_csr_tensor(*parts, size=matrix.shape, dtype=dtype,
                                       check_invariants=False)
