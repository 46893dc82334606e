"""The question of rank, capacity and direction of an attention matrix, and its result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from analysis.adjacency import adjacency_of
from analysis.attention.capacity import capacity_of
from analysis.attention.directed import (
    MAX_DENSE,
    circulation_of,
    laplacian_of,
    normalized_rows,
)
from analysis.attention.direction import asymmetry_of, flow_of
from analysis.attention.rank import rank_of
from analysis.checks import check_probability
from analysis.graphs import GraphLike
from analysis.result import Result, token_values
from analysis.walk import strong_components


@dataclass(frozen=True)
class AttentionMatrix(Result):
    r"""Measures of an attention matrix A ``[query, key]``. A measure that does not apply to A is
    ``None``.

    Attributes:
        num_queries, num_keys, num_edges (int): The size of A, and the number of weights above 0.
        sigma_1, sigma_2 (float): The two largest singular values of A; ``sigma_2`` is ``None`` for
            a single row or column.
        gap (float): :math:`\sigma_1 - \sigma_2`.
        effective_rank (float, optional): :math:`\exp(-\sum_i p_i \log p_i)` of
            :math:`p_i = \sigma_i / \sum_j \sigma_j`, up to 2,048 tokens.
        stable_rank (float): :math:`\lVert A \rVert_F^2 / \sigma_1^2`.
        from_uniform (float, optional): Mean total variation distance between the weights of a query
            and equal weights for all keys. It is 0 if all tokens attend to all tokens equally.
        from_uniform_on_edges (float, optional): Mean total variation distance between the weights
            of a query and equal weights on the edges of the query.
        transport_gap (float, optional): :math:`1 - \sigma_2` of
            :math:`D_q^{-1/2} A D_k^{-1/2}`.
        phi_below, phi_above (float, optional): Bounds of the bipartite Cheeger number.
        phi (float, optional): The bipartite Cheeger number itself, if at most 20 queries and keys
            have edges.
        asymmetry (float, optional): G, see :func:`analysis.attention.asymmetry`.
        to_earlier, to_self, to_later (float, optional): Shares of all weight on keys before the
            query, on the query itself, and on keys after it.
        mean_distance (float, optional): Mean of :math:`|i - j|` over query i and key j, by weight.
        strong_components (int, optional): Number of strongly connected components.
        directed_gap (float, optional): :math:`\lambda_2` of the directed Laplacian, see
            :func:`analysis.attention.directed_laplacian`, up to 4,096 tokens; ``None`` if the
            graph is not strongly connected and there is no teleport.
        singular_values (ndarray): float64, in descending order. Up to 2,048 tokens, these are all
            singular values, and otherwise the two largest.
        stationary (ndarray, optional): float64 ``[n]``, the stationary distribution of the walk
            from queries to keys, if there is a directed gap.
    """

    num_queries: int
    num_keys: int
    num_edges: int
    sigma_1: float
    sigma_2: float | None
    gap: float | None
    effective_rank: float | None
    stable_rank: float
    from_uniform: float | None
    from_uniform_on_edges: float | None
    transport_gap: float | None = None
    phi_below: float | None = None
    phi_above: float | None = None
    phi: float | None = None
    asymmetry: float | None = None
    to_earlier: float | None = None
    to_self: float | None = None
    to_later: float | None = None
    mean_distance: float | None = None
    strong_components: int | None = None
    directed_gap: float | None = None
    singular_values: np.ndarray | None = None
    stationary: np.ndarray | None = token_values(default=None)


def attention(graph: GraphLike, *, weights: bool = True,
              teleport: float | None = None) -> AttentionMatrix:
    r"""Measure rank, capacity and direction of an attention matrix.

    Let A be the matrix ``[query, key]`` of the weights. Each row of A is divided by its sum, so
    that the weights of a query sum to 1. Without ``weights``, a query attends equally to all its
    keys.

    - **Rank.** If :math:`\sigma_1` is far above the other singular values, one application of A
      brings all tokens close to a single vector: rank collapse.
    - **Capacity.** Let S be a set of queries and keys. E is the total weight of the edges that
      leave S, and vol is the total weight of the edges of its members, where an edge counts at both
      of its ends. The bipartite Cheeger number is

      .. math::
          \phi = \min_S \frac{E(S, \bar S)}{\min(\mathrm{vol}\, S, \mathrm{vol}\, \bar S)}, \qquad
          \frac{1 - \sigma_2}{2} \le \phi \le \sqrt{2 (1 - \sigma_2)}

      for the second singular value of :math:`D_q^{-1/2} A D_k^{-1/2}`, whose degrees D are the row
      and column sums. ``phi_above`` is the conductance of a cut: the best prefix of the tokens
      sorted by the second singular vectors. This conductance never exceeds the bound above. Queries
      and keys without edges are left out.
    - **Direction.** No spectrum of a symmetrised matrix can distinguish A from its transpose. The
      shares of weight on earlier and later keys distinguish them, and G measures how much the two
      matrices differ. Only the shares and the mean distance depend on the order of the tokens.

    Args:
        graph: See :func:`analysis.adjacency.adjacency_of`.
        weights: Whether to use the weights of edges instead of 1.
        teleport: Probability of a step to any token in the walk of the directed Laplacian.

    Returns:
        AttentionMatrix.

    Raises:
        TypeError, ValueError: An argument is invalid, the graph has no tokens, a weight is negative
            or not finite, or the largest singular values are too close together.

    Source: "Mind the Gap" (arXiv 2410.07799) for the gap; Roy and Vetterli, "The effective rank"
    (2007); "Self-Attention as Transport" (arXiv 2605.04893) for the bipartite Cheeger number and
    direction; Chung, "Laplacians and the Cheeger inequality for directed graphs" (2005).

    Example:
        >>> from analysis.attention import attention
        >>> from graphattn.patterns import Causal
        >>> result = attention(Causal().build(8))
        >>> result.phi >= 1 / 5, result.to_later, round(result.asymmetry, 3)
        (True, 0.0, 0.662)
    """
    if teleport is not None:
        check_probability('teleport', teleport)
    matrix = adjacency_of(graph, weights)
    if min(matrix.shape) == 0:
        raise ValueError(f"'graph' must have at least one token (got {matrix.shape[0]} queries and "
                         f"{matrix.shape[1]} keys)")
    matrix = normalized_rows(matrix)
    num_queries, num_keys = matrix.shape
    return AttentionMatrix(
        num_queries, num_keys, matrix.nnz, **rank_of(matrix), **_from_uniform(matrix),
        **capacity_of(matrix), asymmetry=asymmetry_of(matrix), **flow_of(matrix),
        **_directed(matrix, teleport))


def _from_uniform(matrix: sp.csr_array) -> dict[str, float | None]:
    degree = np.diff(matrix.indptr)
    query = np.repeat(np.arange(len(degree)), degree)
    has_keys, num_keys = degree > 0, matrix.shape[1]
    if not has_keys.any():
        return dict(from_uniform=None, from_uniform_on_edges=None)
    apart = np.bincount(query, np.abs(matrix.data - 1 / num_keys), len(degree))
    apart_on_edges = np.bincount(query, np.abs(matrix.data - 1 / degree[query]), len(degree))
    # the total variation counts the uniform weight of keys without an edge
    apart += 1 - degree / num_keys
    return dict(from_uniform=float(apart[has_keys].mean() / 2),
                from_uniform_on_edges=float(apart_on_edges[has_keys].mean() / 2))


def _directed(matrix: sp.csr_array, teleport: float | None) -> dict[str, object]:
    if matrix.shape[0] != matrix.shape[1]:
        return {}
    num_components = int(strong_components(matrix).max()) + 1
    is_large = matrix.shape[0] > MAX_DENSE
    if teleport is None and (num_components > 1 or is_large):
        return dict(strong_components=num_components)
    flow = circulation_of(matrix, teleport)
    pairs = laplacian_of(flow).smallest(min(2, matrix.shape[0]))
    gap = float(pairs.values[1]) if matrix.shape[0] > 1 else None
    return dict(strong_components=num_components, directed_gap=gap,
                stationary=flow.sum(axis=1))
