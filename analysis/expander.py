"""Expansion of an attention graph: spectral gap, bounds, best cut and diameter."""

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph
from tqdm import tqdm

from analysis.graphs import (
    GraphLike,
    Symmetrization,
    adjacency_of,
    describe_symmetrization,
    symmetrize,
)
from analysis.result import Result, token_numbers
from analysis.spectrum import Laplacian

__all__ = ['Expansion', 'expander']
EXACT_UP_TO = 20  # tokens, a million sets
# Up to this size the diameter is exact, with one search per node in the worst case.
_EXACT_NODES = 4096
# Searches in larger graphs: a double sweep needs two, and a graph with a central hub needs few
# more.
_SWEEPS = 16


@dataclass(frozen=True)
class Expansion(Result):
    """Measures of the expansion of a graph. A measure that does not apply to the graph is
    ``None``."""

    ONLY = {'of regular graphs': ('adjacency_gap', 'expander'),
            'of simple regular graphs': ('second_modulus', 'ramanujan_bound', 'is_ramanujan'),
            'of simple regular graphs of diameter 2 or more': ('alon_boppana_bound',),
            f'up to {EXACT_UP_TO} tokens': ('exact_conductance', 'edge_expansion',
                                            'vertex_expansion', 'inner_vertex_expansion')}
    num_nodes: int  #: Number of tokens n.
    symmetrization: str  #: How an edge without its reverse was treated.
    min_degree: float  #: Row sums of the symmetric A, self-loops counted once.
    mean_degree: float
    max_degree: float
    is_regular: bool  #: Whether all degrees are equal.
    num_components: int  #: Number of connected components.
    is_connected: bool  #: Whether there is only one connected component.
    is_strongly_connected: bool  #: Whether every token reaches every other along directed edges.
    #: The longest shortest path of the symmetric graph; ``None`` if the graph is not connected. The
    #: value is a lower bound unless ``diameter_is_exact``.
    diameter: int | None
    diameter_is_exact: bool  #: Whether the searches proved the diameter.
    #: Second smallest eigenvalue of the normalised Laplacian, the spectral gap :math:`1 - \mu_2 /
    #: d` of the walk.
    lambda_2: float | None = None
    lambda_max: float | None = None  #: Largest eigenvalue of the normalised Laplacian.
    adjacency_gap: float | None = None  #: :math:`d - \mu_2(A)` of a regular graph.
    max_residual: float = 0.  #: Largest residual of the computed eigenvalues.
    expander: str | None = None  #: The text ``(d, epsilon)`` for a regular graph.
    #: The smallest epsilon with which the graph approximates :math:`(\bar d / n) K_n`, the scaled
    #: complete graph.
    epsilon: float | None = None
    epsilon_below: float | None = None  #: The epsilon that each of the two sides requires.
    epsilon_above: float | None = None
    #: The largest :math:`|\mu_i|` of a regular graph except for :math:`d`, and :math:`-d` if it is
    #: bipartite.
    second_modulus: float | None = None
    ramanujan_bound: float | None = None  #: :math:`2 \sqrt{d - 1}`.
    #: Whether ``second_modulus`` of a connected graph is at most ``ramanujan_bound``.
    is_ramanujan: bool | None = None
    alon_boppana_bound: float | None = None  #: Lower bound of :math:`\mu_2`.
    cheeger_below: float | None = None  #: The two sides of Cheeger's inequality.
    cheeger_above: float | None = None
    #: Conductance of the best set of the sweep cut, an upper bound of the graph's conductance h.
    sweep_conductance: float | None = None
    sweep_size: int | None = None  #: Number of tokens in that set.
    sweep_volume: float | None = None  #: The sum of the degrees of these tokens.
    sweep_boundary: float | None = None  #: The total weight of the edges that leave the set.
    sweep_expansion: float | None = None  #: ``sweep_boundary`` per token of the smaller side.
    #: The conductance h of the graph, the minimum over all sets, for at most 20 tokens.
    exact_conductance: float | None = None
    #: The minimum of :math:`E(S, \bar S) / |S|` over sets of at most half the tokens, for at most
    #: 20 tokens.
    edge_expansion: float | None = None
    #: The minimum of :math:`|\partial S| / |S|` over the same sets, with the neighbours of S
    #: outside S.
    vertex_expansion: float | None = None
    #: The minimum of the same ratio, if :math:`\partial S` is the neighbours of the complement in
    #: S.
    inner_vertex_expansion: float | None = None
    #: int64, the tokens of the best set of the sweep cut, on the side of smaller volume.
    sweep_set: np.ndarray | None = token_numbers(default=None)
    #: float64 ``[n - 1]``, the conductance of every prefix of the tokens in the order of the sweep.
    sweep_conductances: np.ndarray | None = None


def expander(graph: GraphLike, *, symmetrization: Symmetrization = 'union',
             weights: bool = False) -> Expansion:
    r"""Measure how well a graph expands: spectral gap, bounds, best cut and diameter.

    Let :math:`\lambda_i` be the eigenvalues of the normalised Laplacian and :math:`\Lambda_i` those
    of the combinatorial Laplacian. The adjacency matrix of a d-regular graph has the eigenvalues
    :math:`\mu_i = d - \Lambda_i`.

    - A d-regular graph is a :math:`(d, \epsilon)`-expander if :math:`|\mu_i| \le \epsilon d` for
      :math:`i \ge 2`.
    - Compared with the complete graph, scaled to the same mean degree, the best :math:`\epsilon` in

      .. math::
          (1 - \epsilon) \tfrac{\bar d}{n} L(K_n) \preceq L(G) \preceq
          (1 + \epsilon) \tfrac{\bar d}{n} L(K_n)

      is :math:`\max(1 - \Lambda_2 / \bar d,\ \Lambda_n / \bar d - 1)`, the same as above for a
      regular graph. Diffuser's Theorem 2 omits the scale, and then no sparse graph comes close. The
      best :math:`\epsilon` may exceed 1, because hubs of an irregular graph make the upper side
      large.
    - A connected d-regular graph with simple edges is Ramanujan if
      :math:`|\mu_i| \le 2 \sqrt{d - 1}` for all :math:`|\mu_i| \ne d`. This is asymptotically
      optimal:
      :math:`\mu_2 \ge 2 \sqrt{d - 1} \cos(\pi / (\lfloor D / 2 \rfloor + 1))` for a diameter of at
      least D.
    - Cheeger: :math:`\lambda_2 / 2 \le h \le \sqrt{2 \lambda_2}` for the minimum conductance

      .. math::
          h = \min_S \frac{E(S, \bar S)}{\min(\mathrm{vol}\, S, \mathrm{vol}\, \bar S)},

      where the ratio is 0 if no edge leaves S. The sweep cut is the best prefix of the tokens
      sorted by :math:`D^{-1/2} v_2`. It satisfies the upper bound, so it is a witness. Diffuser's
      Definition 4 prints :math:`E(S, S)` for the edges to the complement. For at most 20 tokens, h
      and the edge and vertex expansions (Definitions 4, 5) are computed over all sets.

    Args:
        graph: See :func:`analysis.graphs.adjacency_of`, with as many keys as queries.
        symmetrization: The treatment of an edge without its reverse: union, mean or intersection,
            see :func:`analysis.graphs.symmetric_adjacency`. With mean, such an edge has weight
            1/2. A graph with equal in-degrees and out-degrees is then regular, but not simple.
        weights: Whether to use the weights of edges instead of 1. Diameters and vertex expansions
            depend on the existence of edges only.

    Raises:
        ValueError: The graph has no nodes, its numbers of keys and queries differ, a weight is
            negative or not finite, or the extreme eigenvalues are too close together.

    Source: Feng et al., "Diffuser" (2023), Definitions 1, 2 and 4, Theorem 2; Friedman, "Some
    geometric aspects of graphs and their eigenfunctions" (1993); Chung, "Spectral Graph Theory"
    (1997), Theorem 2.2 and its proof.

    Example:
        >>> import networkx as nx
        >>> from analysis.expander import expander
        >>> petersen = expander(nx.petersen_graph())
        >>> petersen.expander, petersen.is_ramanujan, petersen.diameter
        ('(3, 0.667)', True, 2)
    """
    directed = adjacency_of(graph, weights)
    adjacency, n = symmetrize(directed, symmetrization), directed.shape[0]
    if n == 0:
        raise ValueError("'graph' must have at least one token (got 0)")
    normalized = Laplacian(adjacency)
    degree = normalized.degree
    is_strongly_connected = csgraph.connected_components(directed, connection='strong')[0] == 1
    is_connected = normalized.num_components == 1
    diameter, diameter_is_exact = find_diameter(adjacency, degree) if is_connected else (None, True)
    facts = _spectral_facts(adjacency, normalized) if n > 1 else {}
    if 1 < n <= EXACT_UP_TO:
        facts |= exact_expansion(adjacency)
    if normalized.is_regular and degree[0] > 0 and n > 1:
        facts |= _regular_facts(adjacency, facts, diameter)
    return Expansion(
        num_nodes=n,
        symmetrization=describe_symmetrization(directed, symmetrization),
        min_degree=float(degree.min()), mean_degree=float(degree.mean()),
        max_degree=float(degree.max()), is_regular=normalized.is_regular,
        num_components=normalized.num_components, is_connected=is_connected,
        is_strongly_connected=bool(is_strongly_connected), diameter=diameter,
        diameter_is_exact=diameter_is_exact, **facts)


def _spectral_facts(adjacency: sp.csr_array, normalized: Laplacian) -> dict[str, object]:
    smallest, largest = normalized.smallest(2), normalized.largest(1)
    lambda_2, lambda_max = float(smallest.values[1]), float(largest.values[-1])
    residual = max(smallest.residuals.max(), largest.residuals.max())
    order = fiedler_order(normalized, smallest.vectors[:, 1])
    facts = dict(lambda_2=lambda_2, lambda_max=lambda_max, cheeger_below=lambda_2 / 2,
                 cheeger_above=math.sqrt(2 * lambda_2), **sweep(adjacency, order))
    mean_degree = normalized.degree.mean()
    if normalized.is_regular:
        below, above = 1 - lambda_2, lambda_max - 1
    elif mean_degree > 0:
        combinatorial = Laplacian(adjacency, 'combinatorial')
        smallest, largest = combinatorial.smallest(2), combinatorial.largest(1)
        residual = max(residual, smallest.residuals.max(), largest.residuals.max())
        below = 1 - smallest.values[1] / mean_degree
        above = largest.values[-1] / mean_degree - 1
    if mean_degree > 0:
        facts |= dict(epsilon=float(max(below, above)), epsilon_below=float(below),
                      epsilon_above=float(above))
    return facts | {'max_residual': float(residual)}


def _regular_facts(adjacency: sp.csr_array, facts: dict[str, object], diameter: int | None
                   ) -> dict[str, object]:
    degree = float(adjacency[[0]].sum())
    mu_2, mu_n = (degree * (1 - facts[name]) for name in ('lambda_2', 'lambda_max'))
    regular = dict(adjacency_gap=degree - mu_2, expander=f'({degree:g}, {facts["epsilon"]:.3g})')
    if not (adjacency.data == 1).all():
        return regular
    second_modulus = max(mu_2, 0) if is_bipartite(adjacency) else max(abs(mu_2), abs(mu_n))
    bound = 2 * math.sqrt(degree - 1)
    is_ramanujan = diameter is not None and second_modulus <= bound + 1e-9 * degree
    if diameter is not None and diameter >= 2:
        radius = diameter // 2 - 1  # the radius of two balls with no edge between them
        regular |= dict(alon_boppana_bound=bound * math.cos(math.pi / (radius + 2)))
    return regular | dict(second_modulus=float(second_modulus), ramanujan_bound=bound,
                          is_ramanujan=is_ramanujan)


def fiedler_order(normalized: Laplacian, vector: np.ndarray) -> np.ndarray:
    """Return the nodes sorted by their entries of :math:`D^{-1/2} v_2`, int ``[n]``."""
    if normalized.num_components > 1:  # one after the other, the smallest volume first
        volume = np.bincount(normalized.component, weights=normalized.degree)
        return np.lexsort((normalized.component, volume[normalized.component]))
    return np.argsort(vector / np.sqrt(np.maximum(normalized.degree, 1e-300)), kind='stable')


def sweep(adjacency: sp.csr_array, order: np.ndarray) -> dict[str, object]:
    """Compute the conductance of the first 1, 2, ... nodes in an order, and find the best such
    set."""
    n = order.size
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    degree = adjacency.sum(axis=1)
    row = np.repeat(np.arange(n), np.diff(adjacency.indptr))
    is_inside = place[adjacency.indices] <= place[row]
    weight_inside = np.bincount(row, weights=adjacency.data * is_inside, minlength=n)
    loops = adjacency.diagonal()
    # A node that enters S removes its edges to S from the cut and adds its other edges. Its
    # self-loop changes nothing.
    opened = degree - 2 * weight_inside + loops
    boundary = np.cumsum(opened[order])[:-1]
    volume = np.cumsum(degree[order])[:-1]
    smaller_volume = np.minimum(volume, degree.sum() - volume)
    conductance = np.divide(boundary, smaller_volume, out=np.zeros(n - 1), where=boundary > 0)
    best = int(conductance.argmin())
    is_prefix = volume[best] <= degree.sum() / 2
    witness = np.sort(order[:best + 1] if is_prefix else order[best + 1:])
    smaller_size = min(witness.size, n - witness.size)
    return dict(
        sweep_conductance=float(conductance[best]), sweep_size=int(witness.size),
        sweep_volume=float(smaller_volume[best]), sweep_boundary=float(boundary[best]),
        sweep_expansion=float(boundary[best]) / smaller_size, sweep_set=witness,
        sweep_conductances=conductance)


def exact_expansion(adjacency: sp.csr_array) -> dict[str, float]:
    """Return the smallest value of each measure of expansion over all sets of tokens (Diffuser,
    App. D)."""
    n = adjacency.shape[0]
    weight = adjacency.toarray()
    np.fill_diagonal(weight, 0.)  # self-loops never leave a set
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    boundary, volume, size = _cuts(weight), _sums(degree), _sums(np.ones(n))
    reached = _neighbours(weight)
    member = np.arange(2**n, dtype=reached.dtype)
    outer = np.bitwise_count(reached & ~member)
    # the outer boundary of the complement, because reversing the array inverts the bits of each
    # index
    inner = outer[::-1]
    proper = slice(1, 2**n - 1)
    smaller_volume = np.minimum(volume, volume[::-1])
    conductance = np.divide(boundary, smaller_volume, out=np.zeros(2**n),
                            where=(boundary > 0) & (smaller_volume > 0))
    is_half = (size > 0) & (size <= n / 2)
    ratios = {'edge_expansion': boundary, 'vertex_expansion': outer,
              'inner_vertex_expansion': inner}
    return {'exact_conductance': float(conductance[proper].min())} | {
        name: float((values[is_half] / size[is_half]).min()) for name, values in ratios.items()}


def _sums(values: np.ndarray) -> np.ndarray:
    """Return for each set of tokens the sum of the values of its tokens, ``[2**n]``, where bit i of
    the index of a set stands for token i."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _cuts(weight: np.ndarray) -> np.ndarray:
    """Return for each set of tokens the total weight of the edges that leave the set, ``[2**n]``,
    given the weights ``[n, n]``."""
    cuts = np.zeros(1)
    for node, row in enumerate(weight):
        cuts = np.concatenate([cuts, cuts + row.sum() - 2 * _sums(row[:node])])
    return cuts


def _neighbours(weight: np.ndarray) -> np.ndarray:
    """Return for each set of tokens the tokens that have a neighbour in the set, int64
    ``[2**n]``."""
    bits = (weight > 0) @ (1 << np.arange(weight.shape[0], dtype=np.int64))
    reached = np.zeros(1, np.int64)
    for own in bits:
        reached = np.concatenate([reached, reached | own])
    return reached


def find_diameter(adjacency: sp.csr_array, degree: np.ndarray) -> tuple[int, bool]:
    """Return the diameter of a connected graph, or a lower bound of the diameter, and whether the
    returned number is exact."""
    # A search from v bounds every eccentricity, |e_v - d(v, w)| <= e_w <= e_v + d(v, w), and
    # searches stop when none can exceed the largest found (Takes and Kosters, 2011). The second
    # search starts at a node farthest from the first, so the first two are a double sweep.
    n = degree.size
    lower, upper = np.zeros(n, dtype=np.int64), np.full(n, n - 1)
    is_searched = np.zeros(n, dtype=bool)
    node, diameter = int(degree.argmax()), 0
    searches = n if n <= _EXACT_NODES else _SWEEPS
    for search in tqdm(range(searches), desc='diameter', unit='search', leave=False, delay=3,
                       disable=None):
        distance = _distances(adjacency, node)
        eccentricity = int(distance.max())
        diameter = max(diameter, eccentricity)
        is_searched[node] = True
        np.maximum(lower, np.maximum(distance, eccentricity - distance), out=lower)
        np.minimum(upper, eccentricity + distance, out=upper)
        is_open = (upper > diameter) & ~is_searched
        if not is_open.any():
            return diameter, True
        candidates = np.flatnonzero(is_open)
        node = int(candidates[upper[candidates].argmax() if search % 2 == 0
                              else lower[candidates].argmin()])
    return diameter, False


def is_bipartite(adjacency: sp.csr_array) -> bool:
    """Return whether the component of node 0 is bipartite: whether every edge joins a node at an
    even distance from node 0 with a node at an odd distance."""
    parity = _distances(adjacency, 0) % 2
    row = np.repeat(np.arange(parity.size), np.diff(adjacency.indptr))
    reached = parity[row] >= 0
    return not (parity[row] == parity[adjacency.indices])[reached].any()


def _distances(adjacency: sp.csr_array, start: int) -> np.ndarray:
    """Return the distance from ``start`` to every node, int ``[n]``; -1 where no path leads."""
    distance = csgraph.dijkstra(adjacency, indices=start, unweighted=True)
    return np.where(np.isfinite(distance), distance, -1).astype(np.int64)
