"""The question of the expansion of a graph, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from analysis.adjacency import (
    Symmetrization,
    adjacency_of,
    describe_symmetrization,
    symmetrize,
)
from analysis.expander.diameter import find_diameter, is_bipartite
from analysis.expander.exact import EXACT_UP_TO, exact_expansion
from analysis.expander.sweep import fiedler_order, sweep
from analysis.graphs import GraphLike
from analysis.result import Result, token_numbers
from analysis.spectrum import Laplacian


@dataclass(frozen=True)
class Expansion(Result):
    r"""Measures of the expansion of a graph. A measure that does not apply to the graph is
    ``None``.

    Attributes:
        num_nodes (int): Number of tokens n.
        symmetrization (str): How an edge without its reverse was treated.
        min_degree, mean_degree, max_degree (float): Row sums of the symmetric A, self-loops
            counted once.
        is_regular (bool): Whether all degrees are equal.
        num_components (int): Number of connected components.
        is_connected (bool): Whether there is only one connected component.
        is_strongly_connected (bool): Whether every token reaches every other along directed edges.
        diameter (int, optional): The longest shortest path of the symmetric graph; ``None`` if the
            graph is not connected. The value is a lower bound unless ``diameter_is_exact``.
        diameter_is_exact (bool): Whether the searches proved the diameter.
        lambda_2 (float, optional): Second smallest eigenvalue of the normalised Laplacian, the
            spectral gap :math:`1 - \mu_2 / d` of the walk.
        lambda_max (float, optional): Largest eigenvalue of the normalised Laplacian.
        adjacency_gap (float, optional): :math:`d - \mu_2(A)` of a regular graph.
        max_residual (float): Largest residual of the computed eigenvalues.
        expander (str, optional): The text ``(d, epsilon)`` for a regular graph.
        epsilon (float, optional): The smallest epsilon with which the graph approximates
            :math:`(\bar d / n) K_n`, the scaled complete graph.
        epsilon_below, epsilon_above (float, optional): The epsilon that each of the two sides
            requires.
        second_modulus (float, optional): The largest :math:`|\mu_i|` of a regular graph except for
            :math:`d`, and :math:`-d` if it is bipartite.
        ramanujan_bound (float, optional): :math:`2 \sqrt{d - 1}`.
        is_ramanujan (bool, optional): Whether ``second_modulus`` of a connected graph is at most
            ``ramanujan_bound``.
        alon_boppana_bound (float, optional): Lower bound of :math:`\mu_2`.
        cheeger_below, cheeger_above (float, optional): The two sides of Cheeger's inequality.
        sweep_conductance (float, optional): Conductance of the best set of the sweep cut, an upper
            bound of the graph's conductance h.
        sweep_size (int, optional): Number of tokens in that set.
        sweep_volume (float, optional): The sum of the degrees of these tokens.
        sweep_boundary (float, optional): The total weight of the edges that leave the set.
        sweep_expansion (float, optional): ``sweep_boundary`` per token of the smaller side.
        exact_conductance (float, optional): The conductance h of the graph, the minimum over all
            sets, for at most 20 tokens.
        edge_expansion (float, optional): The minimum of :math:`E(S, \bar S) / |S|` over sets of at
            most half the tokens, for at most 20 tokens.
        vertex_expansion (float, optional): The minimum of :math:`|\partial S| / |S|` over the same
            sets, with the neighbours of S outside S.
        inner_vertex_expansion (float, optional): The minimum of the same ratio, if
            :math:`\partial S` is the neighbours of the complement in S.
        sweep_set (ndarray, optional): int64, the tokens of the best set of the sweep cut, on the
            side of smaller volume.
        sweep_conductances (ndarray, optional): float64 ``[n - 1]``, the conductance of every prefix
            of the tokens in the order of the sweep.
    """

    num_nodes: int
    symmetrization: str
    min_degree: float
    mean_degree: float
    max_degree: float
    is_regular: bool
    num_components: int
    is_connected: bool
    is_strongly_connected: bool
    diameter: int | None
    diameter_is_exact: bool
    lambda_2: float | None = None
    lambda_max: float | None = None
    adjacency_gap: float | None = None
    max_residual: float = 0.
    expander: str | None = None
    epsilon: float | None = None
    epsilon_below: float | None = None
    epsilon_above: float | None = None
    second_modulus: float | None = None
    ramanujan_bound: float | None = None
    is_ramanujan: bool | None = None
    alon_boppana_bound: float | None = None
    cheeger_below: float | None = None
    cheeger_above: float | None = None
    sweep_conductance: float | None = None
    sweep_size: int | None = None
    sweep_volume: float | None = None
    sweep_boundary: float | None = None
    sweep_expansion: float | None = None
    exact_conductance: float | None = None
    edge_expansion: float | None = None
    vertex_expansion: float | None = None
    inner_vertex_expansion: float | None = None
    sweep_set: np.ndarray | None = token_numbers(default=None)
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
        graph: See :func:`analysis.adjacency.adjacency_of`, with as many keys as queries.
        symmetrization: The treatment of an edge without its reverse: union, mean or intersection,
            see :func:`analysis.adjacency.symmetric_adjacency`. With mean, such an edge has weight
            1/2. A graph with equal in-degrees and out-degrees is then regular, but not simple.
        weights: Whether to use the weights of edges instead of 1. Diameters and vertex expansions
            depend on the existence of edges only.

    Returns:
        Expansion.

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
