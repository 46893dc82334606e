"""Direction of an attention matrix: asymmetry, and the weights of earlier and later keys."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from analysis.adjacency import adjacency_of
from analysis.graphs import GraphLike


def asymmetry(graph: GraphLike, *, weights: bool = True) -> float | None:
    r"""Return how far a square matrix is from symmetric.

    .. math::
        G = \frac{\lVert A - A^\top \rVert_F}{\sqrt 2 \, \lVert A \rVert_F}, \qquad
        G^2 = 1 - \frac{\sum_{ij} A_{ij} A_{ji}}{\sum_{ij} A_{ij}^2}

    G lies in [0, 1]. If A is symmetric, G is 0. If no weight has a weight in the other direction, G
    is 1. A symmetrised matrix is the same for A and its transpose, so no spectrum of that matrix
    shows the direction. The definition of G is this project's. "Self-Attention as Transport" (arXiv
    2605.04893) uses a coefficient G of the degree-normalised matrix for the same purpose.

    Args:
        graph: See :func:`analysis.adjacency.adjacency_of`.
        weights: Whether to use the weights of edges instead of 1.

    Returns:
        G, or ``None`` if there are no edges, or if the numbers of keys and queries differ.
    """
    return asymmetry_of(adjacency_of(graph, weights))


def asymmetry_of(matrix: sp.csr_array) -> float | None:
    """Return the asymmetry G of a square sparse array, see :func:`asymmetry`; ``None`` if it has no
    entries or is not square."""
    if matrix.nnz == 0 or matrix.shape[0] != matrix.shape[1]:
        return None
    scaled = matrix / matrix.data.max()  # so that no squared entry underflows
    difference = sp.csr_array(scaled - scaled.T)
    return math.sqrt(float(difference.data @ difference.data)
                     / (2 * float(scaled.data @ scaled.data)))


def flow_of(matrix: sp.csr_array) -> dict[str, float]:
    """Return where the weight of an attention matrix goes, by the order of the tokens, as a dict.

    The dict has the shares of all weight on earlier keys, on the query itself and on later keys,
    and the mean distance of query and key, weighted by attention. Its names are fields of
    :class:`analysis.attention.AttentionMatrix`.
    """
    if matrix.nnz == 0 or matrix.shape[0] != matrix.shape[1]:
        return {}
    query, key = matrix.nonzero()
    ahead, share = key - query, matrix.data / matrix.data.sum()
    return dict(to_earlier=float(share[ahead < 0].sum()), to_self=float(share[ahead == 0].sum()),
                to_later=float(share[ahead > 0].sum()), mean_distance=float(share @ np.abs(ahead)))
