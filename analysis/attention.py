"""Rank, capacity and direction of an attention matrix."""

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse import csgraph

from analysis.expander import EXACT_UP_TO, exact_expansion, fiedler_order, sweep
from analysis.graphs import GraphLike, adjacency_of, check_probability
from analysis.result import Result, token_values
from analysis.spectrum import Laplacian, join_queries_to_keys, smallest_outside
from analysis.walk import MAX_DENSE, closed_classes_of, stationary_distribution, strong_components

__all__ = ['AttentionMatrix', 'attention', 'directed_laplacian']
# Up to this number of tokens, all singular values take seconds to compute.
DENSE_TOKENS = 2048


@dataclass(frozen=True)
class AttentionMatrix(Result):
    """Measures of an attention matrix A ``[query, key]``. A measure that does not apply to A is
    ``None``."""

    ONLY = {f'up to {DENSE_TOKENS:,} tokens': ('effective_rank',),
            f'up to {EXACT_UP_TO} queries and keys with edges': ('phi',),
            'if there are as many keys as queries': (
                'asymmetry', 'to_earlier', 'to_self', 'to_later', 'mean_distance',
                'strong_components'),
            'if strongly connected, or with --teleport': ('directed_gap',)}
    num_queries: int  #: The size of A, and the number of weights above 0.
    num_keys: int
    num_edges: int
    #: The two largest singular values of A; ``sigma_2`` is ``None`` for a single row or column.
    sigma_1: float
    sigma_2: float | None
    gap: float | None  #: :math:`\sigma_1 - \sigma_2`.
    #: :math:`\exp(-\sum_i p_i \log p_i)` of :math:`p_i = \sigma_i / \sum_j \sigma_j`, up to 2,048
    #: tokens.
    effective_rank: float | None
    stable_rank: float  #: :math:`\lVert A \rVert_F^2 / \sigma_1^2`.
    #: Mean total variation distance between the weights of a query and equal weights for all keys.
    #: It is 0 if all tokens attend to all tokens equally.
    from_uniform: float | None
    #: Mean total variation distance between the weights of a query and equal weights on the edges
    #: of the query.
    from_uniform_on_edges: float | None
    transport_gap: float | None = None  #: :math:`1 - \sigma_2` of :math:`D_q^{-1/2} A D_k^{-1/2}`.
    phi_below: float | None = None  #: Bounds of the bipartite Cheeger number.
    phi_above: float | None = None
    #: The bipartite Cheeger number itself, if at most 20 queries and keys have edges.
    phi: float | None = None
    asymmetry: float | None = None  #: G: 0 if A is symmetric, 1 if no weight has one against it.
    #: Shares of all weight on keys before the query, on the query itself, and on keys after it.
    to_earlier: float | None = None
    to_self: float | None = None
    to_later: float | None = None
    #: Mean of :math:`|i - j|` over query i and key j, by weight.
    mean_distance: float | None = None
    strong_components: int | None = None  #: Number of strongly connected components.
    #: :math:`\lambda_2` of the directed Laplacian, see
    #: :func:`analysis.attention.directed_laplacian`, up to 4,096 tokens; ``None`` if the graph is
    #: not strongly connected and there is no teleport.
    directed_gap: float | None = None
    #: float64, in descending order. Up to 2,048 tokens, these are all singular values, and
    #: otherwise the two largest.
    singular_values: np.ndarray | None = None
    #: float64 ``[n]``, the stationary distribution of the walk from queries to keys, if there is a
    #: directed gap.
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
      and column sums; it is 0 for a single row or column. ``phi_above`` is the conductance of a
      cut: the best prefix of the tokens sorted by the second singular vectors. This conductance
      never exceeds the bound above. Queries and keys without edges are left out.
    - **Direction.** No spectrum of a symmetrised matrix can distinguish A from its transpose. The
      shares of weight on earlier and later keys distinguish them, and

      .. math::
          G = \frac{\lVert A - A^\top \rVert_F}{\sqrt 2 \, \lVert A \rVert_F}, \qquad
          G^2 = 1 - \frac{\sum_{ij} A_{ij} A_{ji}}{\sum_{ij} A_{ij}^2}

      measures how much the two matrices differ. "Self-Attention as Transport" uses the G of the
      degree-normalised matrix. Only the shares and the mean distance depend on the order of the
      tokens.

    Args:
        graph: See :func:`analysis.graphs.adjacency_of`.
        weights: Whether to use the weights of edges instead of 1.
        teleport: Probability of a step to any token in the walk of the directed Laplacian.

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
    matrix = _normalized_rows(matrix)
    num_queries, num_keys = matrix.shape
    return AttentionMatrix(
        num_queries, num_keys, matrix.nnz, **_rank_of(matrix), **_from_uniform(matrix),
        **_capacity_of(matrix), asymmetry=_asymmetry_of(matrix), **_flow_of(matrix),
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
    flow = _circulation(matrix, teleport)
    pairs = _laplacian_of(flow).smallest(min(2, matrix.shape[0]))
    gap = float(pairs.values[1]) if matrix.shape[0] > 1 else None
    return dict(strong_components=num_components, directed_gap=gap,
                stationary=flow.sum(axis=1))


def _rank_of(matrix: sp.csr_array) -> dict[str, object]:
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
    """Return the two largest singular values of a non-negative matrix, float64 ``[2]``."""
    # The largest singular value of a connected part is simple (Perron and Frobenius), so the
    # iteration cannot overlook a second copy of it. A part is skipped if the bound of its values is
    # below the second largest value found so far.
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


def _capacity_of(matrix: sp.csr_array) -> dict[str, object]:
    joined = join_queries_to_keys(matrix)
    has_edge = joined.sum(axis=1) > 0
    if not has_edge.any():
        return {}
    joined = sp.csr_array(joined[has_edge][:, has_edge])
    normalized = Laplacian(joined)
    pairs = normalized.smallest(2)
    lambda_2 = float(pairs.values[1])  # 1 - sigma_2, but 2 for a single query and key
    cut = sweep(joined, fiedler_order(normalized, pairs.vectors[:, 1]))
    exact = (exact_expansion(joined)['exact_conductance'] if joined.shape[0] <= EXACT_UP_TO
             else None)
    return dict(
        transport_gap=min(lambda_2, 1.), phi_below=lambda_2 / 2,
        phi_above=min(cut['sweep_conductance'], math.sqrt(2 * lambda_2)), phi=exact)


def _asymmetry_of(matrix: sp.csr_array) -> float | None:
    """Return the asymmetry G of a matrix, or ``None`` if it has no entries or is not square."""
    if matrix.nnz == 0 or matrix.shape[0] != matrix.shape[1]:
        return None
    scaled = matrix / matrix.data.max()  # so that no squared entry underflows
    difference = sp.csr_array(scaled - scaled.T)
    return math.sqrt(float(difference.data @ difference.data)
                     / (2 * float(scaled.data @ scaled.data)))


def _flow_of(matrix: sp.csr_array) -> dict[str, float]:
    """Return where the weight of an attention matrix goes, by the order of the tokens, as a
    dict."""
    if matrix.nnz == 0 or matrix.shape[0] != matrix.shape[1]:
        return {}
    query, key = matrix.nonzero()
    ahead, share = key - query, matrix.data / matrix.data.sum()
    return dict(to_earlier=float(share[ahead < 0].sum()), to_self=float(share[ahead == 0].sum()),
                to_later=float(share[ahead > 0].sum()), mean_distance=float(share @ np.abs(ahead)))


def directed_laplacian(graph: GraphLike, *, weights: bool = False,
                       teleport: float | None = None) -> Laplacian:
    r"""Return the Laplacian of a directed graph.

    A walk moves from query i to key j with probability :math:`P_{ij} = A_{ij} / \sum_k A_{ik}`, and
    :math:`\Phi` is the diagonal matrix of its stationary distribution :math:`\varphi`.

    .. math::
        L = I - \tfrac{1}{2} \bigl(\Phi^{1/2} P \, \Phi^{-1/2}
        + \Phi^{-1/2} P^\top \Phi^{1/2}\bigr)

    L is the normalised Laplacian of the undirected graph with weights
    :math:`(\Phi P + P^\top \Phi) / 2`, so that Cheeger's inequality bounds the least circulation
    out of a set of tokens.

    Args:
        graph: See :func:`analysis.graphs.adjacency_of`, with as many keys as queries.
        weights: Whether to use the weights of edges instead of 1.
        teleport: Probability of a step to any token, all of them equally likely. A query without
            keys always takes such a step.

    Returns:
        Laplacian. Its ``matrix`` is L, and its ``degree`` is :math:`\varphi`.

    Raises:
        ValueError: The graph is not strongly connected and ``teleport`` is omitted, or the graph
            has more than 4,096 tokens and ``teleport`` is given.

    Source: Chung, "Laplacians and the Cheeger inequality for directed graphs" (2005).

    Example:
        >>> import networkx as nx
        >>> from analysis.attention import directed_laplacian
        >>> cycle = nx.cycle_graph(4, create_using=nx.DiGraph)
        >>> directed_laplacian(cycle).smallest(2).values.round(6) + 0
        array([0., 1.])
    """
    return _laplacian_of(_circulation(adjacency_of(graph, weights), teleport))


def _laplacian_of(flow: sp.csr_array) -> Laplacian:
    return Laplacian(sp.csr_array(flow + flow.T) / 2)


def _circulation(matrix: sp.csr_array, teleport: float | None = None) -> sp.csr_array:
    """Return the flow of the stationary walk along the edges, ``[n, n]``, which sums to 1."""
    n, num_keys = matrix.shape
    if n != num_keys or n == 0:
        raise ValueError(f"'graph' must have as many keys as queries, and at least one of each, "
                         f"for a random walk (got {num_keys} keys and {n} queries)")
    walk = _walk(matrix) if teleport is None else _teleporting(matrix, teleport)
    component = strong_components(walk)
    if component.max() > 0:
        raise ValueError(f"'graph' must be strongly connected for a directed Laplacian (got "
                         f"{component.max() + 1} strongly connected components); pass "
                         f"teleport=0.1, or measure each component alone")
    stationary = stationary_distribution(walk, closed_classes_of(walk, component), False)
    if not (stationary > 0).all():
        raise ValueError(f"'graph' must have stationary probabilities above rounding errors (got "
                         f"smaller probabilities, with {n} tokens); measure at most {MAX_DENSE} "
                         f"tokens, or another graph")
    return sp.csr_array(sp.diags_array(stationary) @ walk)


def _normalized_rows(matrix: sp.csr_array) -> sp.csr_array:
    total = matrix.sum(axis=1)
    return sp.csr_array(sp.diags_array(1 / np.where(total > 0, total, 1)) @ matrix)


def _walk(matrix: sp.csr_array) -> sp.csr_array:
    # the walk stays at a query without keys
    stays = sp.diags_array((matrix.sum(axis=1) == 0).astype(float))
    return sp.csr_array(_normalized_rows(matrix) + stays)


def _teleporting(matrix: sp.csr_array, teleport: float) -> sp.csr_array:
    check_probability('teleport', teleport)
    n = matrix.shape[0]
    if n > MAX_DENSE:
        raise ValueError(f"'graph' must have at most {MAX_DENSE} tokens with 'teleport' (got {n}); "
                         f"omit 'teleport', or measure a smaller graph")
    walk = _normalized_rows(matrix).toarray()
    walk[walk.sum(axis=1) == 0] = 1 / n
    return sp.csr_array((1 - teleport) * walk + teleport / n)
