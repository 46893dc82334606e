"""How well an attention graph expands: its gap, its bounds, its best cut and its diameter.

::

    python -m analysis.expander
    python -m analysis.expander --pattern bigbird diffuser --n 2048
    python -m analysis.expander --pattern 'RandomRegular(8)' --n 1024 --symmetrization mean
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.sparse import csgraph
from tqdm import tqdm

from analysis.adjacency import Symmetrization, symmetric_adjacency
from analysis.command import ask
from analysis.graphs import GraphLike, as_graph
from analysis.result import Result
from analysis.spectrum import Laplacian, describe_symmetrization

# Up to here the diameter is exact, at one search for each node in the worst case.
_EXACT_NODES = 4096
# Searches beyond: two sweeps are two of them, and a hub in the middle of all needs few more.
_SWEEPS = 16


@dataclass(frozen=True)
class Expansion(Result):
    """What :func:`expander` finds; ``None`` where a question does not apply.

    Attributes:
        num_nodes (int): Number of tokens n.
        symmetrization (str): What became of an edge without its reverse.
        min_degree, mean_degree, max_degree (float): Row sums of the symmetric A, self-loops
            counted once.
        is_regular (bool): Whether all degrees are equal.
        num_components (int): Connected components.
        is_connected (bool): Whether there is one.
        is_strongly_connected (bool): Whether every token reaches every other along the edges as
            they are directed.
        diameter (int, optional): The longest shortest path of the symmetric graph; ``None`` if it
            is not connected. A lower bound unless ``diameter_is_exact``.
        diameter_is_exact (bool): Whether the bounds from the searches met.
        lambda_2 (float, optional): Second smallest eigenvalue of the normalised Laplacian, which
            is the spectral gap :math:`1 - \\mu_2 / d` of the walk.
        lambda_max (float, optional): Its largest eigenvalue.
        adjacency_gap (float, optional): :math:`d - \\mu_2(A)` of a regular graph.
        max_residual (float): Of all eigenvalues that were computed.
        expander (str, optional): ``(d, epsilon)`` of a regular graph.
        epsilon (float, optional): The best epsilon against :math:`(\\bar d / n) K_n`.
        epsilon_below, epsilon_above (float, optional): What each of its two sides needs.
        second_modulus (float, optional): The largest :math:`|\\mu_i|` of a regular graph but for
            :math:`d`, and but for :math:`-d` if it is bipartite.
        ramanujan_bound (float, optional): :math:`2 \\sqrt{d - 1}`.
        is_ramanujan (bool, optional): Whether a connected graph keeps it.
        alon_boppana_bound (float, optional): What :math:`\\mu_2` cannot be below.
        cheeger_below, cheeger_above (float, optional): The two sides of Cheeger's inequality.
        sweep_conductance (float, optional): Of the witness; the graph's h is at most this.
        sweep_size (int, optional): Tokens in the witness.
        sweep_volume (float, optional): The sum of their degrees.
        sweep_boundary (float, optional): The weight of the edges that leave it.
        sweep_expansion (float, optional): ``sweep_boundary`` for each token of the smaller side.
        sweep_set (ndarray, optional): int64, the tokens of the witness, the side of less volume.
        sweep_conductances (ndarray, optional): float64 ``[n - 1]``, of every prefix of the order.
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
    sweep_set: np.ndarray | None = None
    sweep_conductances: np.ndarray | None = None


def expander(graph: GraphLike, *, symmetrization: Symmetrization = 'union') -> Expansion:
    r"""How well a graph expands.

    With :math:`\lambda_i` the eigenvalues of the normalised Laplacian, :math:`\Lambda_i` those of
    the combinatorial one, and :math:`\mu_i = d - \Lambda_i` those of the adjacency matrix of a
    d-regular graph:

    - A d-regular graph is a :math:`(d, \epsilon)`-expander if :math:`|\mu_i| \le \epsilon d` for
      :math:`i \ge 2`.
    - Against the complete graph, scaled to the same mean degree, the best :math:`\epsilon` in

      .. math::
          (1 - \epsilon) \tfrac{\bar d}{n} L(K_n) \preceq L(G) \preceq
          (1 + \epsilon) \tfrac{\bar d}{n} L(K_n)

      is :math:`\max(1 - \Lambda_2 / \bar d,\ \Lambda_n / \bar d - 1)`, the same as above for a
      regular graph. Without the scale, as Diffuser's Theorem 2 is printed, no sparse graph comes
      close. It may exceed 1: the hubs of an irregular graph make the upper side large.
    - A connected d-regular graph with simple edges is Ramanujan if
      :math:`|\mu_i| \le 2 \sqrt{d - 1}` for all :math:`|\mu_i| \ne d`. Better is not to be had:
      :math:`\mu_2 \ge 2 \sqrt{d - 1} \cos(\pi / (\lfloor D / 2 \rfloor + 1))` for a diameter of
      at least D.
    - Cheeger: :math:`\lambda_2 / 2 \le h \le \sqrt{2 \lambda_2}` for the least conductance

      .. math::
          h = \min_S \frac{E(S, \bar S)}{\min(\mathrm{vol}\, S, \mathrm{vol}\, \bar S)},

      0 where no edge leaves S. The best prefix of the order in which :math:`D^{-1/2} v_2` rises
      (the sweep cut) keeps the upper side, so it is a witness. Diffuser's Definition 4 counts
      :math:`E(S, S)`, where the edges to the complement are meant.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        symmetrization: What becomes of an edge without its reverse: union, mean or intersection,
            see :func:`analysis.adjacency.symmetric_adjacency`. By mean the edge has weight 1/2;
            a graph of equal in-degrees and out-degrees then is regular, but not simple.

    Returns:
        Expansion.

    Raises:
        ValueError: The graph has no nodes or not as many keys as queries.
        scipy.sparse.linalg.ArpackNoConvergence: The extreme eigenvalues are too close together.

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
    graph = as_graph(graph)
    adjacency = symmetric_adjacency(graph, symmetrization)
    if graph.num_queries == 0:
        raise ValueError(f"'graph' must have at least one token (got {graph})")
    normalized = Laplacian(adjacency)
    degree = normalized.degree
    is_strongly_connected = csgraph.connected_components(graph.to_scipy(),
                                                         connection='strong')[0] == 1
    is_connected = normalized.num_components == 1
    diameter, diameter_is_exact = _diameter(adjacency, degree) if is_connected else (None, True)
    facts = _spectral_facts(adjacency, normalized) if graph.num_queries > 1 else {}
    if normalized.is_regular and degree[0] > 0 and graph.num_queries > 1:
        facts |= _regular_facts(adjacency, facts, diameter)
    return Expansion(
        num_nodes=graph.num_queries,
        symmetrization=describe_symmetrization(graph, symmetrization),
        min_degree=float(degree.min()), mean_degree=float(degree.mean()),
        max_degree=float(degree.max()), is_regular=normalized.is_regular,
        num_components=normalized.num_components, is_connected=is_connected,
        is_strongly_connected=bool(is_strongly_connected), diameter=diameter,
        diameter_is_exact=diameter_is_exact, **facts)


def draw(results: dict[str, list[Expansion]]) -> Figure:
    """Every prefix of the sweep against Cheeger's two sides, and the eigenvalues against theirs."""
    figure = Figure(figsize=(9, 4.4), layout='constrained')
    sweeps, ends = figure.subplots(1, 2, width_ratios=[3, 2])
    for place, (label, samples) in enumerate(results.items()):
        _draw_sweeps(sweeps, samples, label, f'C{place}')
        _draw_ends(ends, samples, len(results) - 1 - place, f'C{place}')
    sweeps.set(title='sweep along the second eigenvector', xlabel='share of the tokens in S',
               ylabel='conductance of S', yscale='log', xlim=(0, 1))
    sweeps.grid(alpha=0.3, which='both')
    ends.set(title='normalised Laplacian', xlabel='eigenvalue', xlim=(-0.05, 2.05),
             yticks=range(len(results)), yticklabels=[''] * len(results),
             ylim=(-0.6, len(results) - 0.4))
    ends.grid(alpha=0.3, axis='x')
    marks = dict(zip(*ends.get_legend_handles_labels()[::-1]))  # each once
    figure.legend(*sweeps.get_legend_handles_labels(), loc='outside lower left', fontsize='small',
                  ncols=2)
    figure.legend(marks.values(), marks.keys(), loc='outside lower right', fontsize='small')
    return figure


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    ask(expander, draw, arguments, name='expander')


def _spectral_facts(adjacency: sp.csr_array, normalized: Laplacian) -> dict[str, object]:
    smallest, largest = normalized.smallest(2), normalized.largest(1)
    lambda_2, lambda_max = float(smallest.values[1]), float(largest.values[-1])
    residual = max(smallest.residuals.max(), largest.residuals.max())
    order = _fiedler_order(normalized, smallest.vectors[:, 1])
    facts = dict(lambda_2=lambda_2, lambda_max=lambda_max, cheeger_below=lambda_2 / 2,
                 cheeger_above=math.sqrt(2 * lambda_2), **_sweep(adjacency, order))
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
    second_modulus = max(mu_2, 0) if _is_bipartite(adjacency) else max(abs(mu_2), abs(mu_n))
    bound = 2 * math.sqrt(degree - 1)
    is_ramanujan = diameter is not None and second_modulus <= bound + 1e-9 * degree
    if diameter is not None and diameter >= 2:
        radius = diameter // 2 - 1  # of two balls that no edge joins
        regular |= dict(alon_boppana_bound=bound * math.cos(math.pi / (radius + 2)))
    return regular | dict(second_modulus=float(second_modulus), ramanujan_bound=bound,
                          is_ramanujan=is_ramanujan)


def _is_bipartite(adjacency: sp.csr_array) -> bool:
    """Of the component of node 0, and so of a connected graph: no edge joins equal parities."""
    parity = _distances(adjacency, 0) % 2
    row = np.repeat(np.arange(parity.size), np.diff(adjacency.indptr))
    reached = parity[row] >= 0
    return not (parity[row] == parity[adjacency.indices])[reached].any()


def _fiedler_order(normalized: Laplacian, vector: np.ndarray) -> np.ndarray:
    """Nodes by D^-1/2 v_2; component by component if there are several, the least volume first."""
    if normalized.num_components > 1:
        volume = np.bincount(normalized.component, weights=normalized.degree)
        return np.lexsort((normalized.component, volume[normalized.component]))
    return np.argsort(vector / np.sqrt(np.maximum(normalized.degree, 1e-300)), kind='stable')


def _sweep(adjacency: sp.csr_array, order: np.ndarray) -> dict[str, object]:
    n = order.size
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    degree = adjacency.sum(axis=1)
    row = np.repeat(np.arange(n), np.diff(adjacency.indptr))
    is_inside = place[adjacency.indices] <= place[row]
    weight_inside = np.bincount(row, weights=adjacency.data * is_inside, minlength=n)
    loops = adjacency.diagonal()
    # A node that enters S closes the edges to S and opens the others; its loop does neither.
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


def _diameter(adjacency: sp.csr_array, degree: np.ndarray) -> tuple[int, bool]:
    """The diameter of a connected graph, or a lower bound, and whether it is exact.

    Each search from a node v bounds the eccentricity of every other node w from both sides,
    :math:`|e_v - d(v, w)| \\le e_w \\le e_v + d(v, w)`, until no node can be farther from some
    other than the farthest seen (Takes and Kosters, "Determining the diameter of small world
    networks", 2011). The second search starts as far as can be from the first: a double sweep.
    """
    n = degree.size
    lower, upper = np.zeros(n, dtype=np.int64), np.full(n, n - 1)
    is_searched = np.zeros(n, dtype=bool)
    node, diameter = int(degree.argmax()), 0
    searches = n if n <= _EXACT_NODES else _SWEEPS
    for search in tqdm(range(searches), desc='diameter', unit='search', leave=False, delay=3):
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


def _distances(adjacency: sp.csr_array, start: int) -> np.ndarray:
    """Steps from ``start`` to every node, -1 where it does not lead, by one search in breadth."""
    order, parent = csgraph.breadth_first_order(adjacency, start, return_predecessors=True)
    place = np.full(adjacency.shape[0], -1)
    place[order] = np.arange(order.size)
    parent_place = place[parent[order[1:]]]  # ascends, so that a level is a slice
    distance = np.full(adjacency.shape[0], -1)
    first, last, level = 0, 1, 0
    while first < last:
        distance[order[first:last]] = level
        first, last = last, 1 + int(np.searchsorted(parent_place, last))
        level += 1
    return distance


def _draw_sweeps(axes: Axes, samples: list[Expansion], label: str, color: str) -> None:
    for number, sample in enumerate(samples):
        if sample.sweep_conductances is None:
            continue
        share = np.arange(1, sample.num_nodes) / sample.num_nodes
        axes.plot(share, sample.sweep_conductances, color=color,
                  linewidth=1.6 if len(samples) == 1 else 0.7,
                  label=label if number == 0 else None)
    sides = np.array([(sample.cheeger_below, sample.cheeger_above) for sample in samples
                      if sample.cheeger_below is not None]).reshape(-1, 2)
    if sides.size and sides.mean(axis=0)[0] > 0:
        axes.axhspan(*sides.mean(axis=0), color=color, alpha=0.12, linewidth=0,
                     label=f"Cheeger's two sides for {label}")


def _draw_ends(axes: Axes, samples: list[Expansion], height: int, color: str) -> None:
    names = {'lambda_2': ('o', r'$\lambda_2$'), 'lambda_max': ('s', r'$\lambda_n$')}
    for name, (marker, text) in names.items():
        if height == 0:
            axes.plot([], [], marker, color='0.3', label=text)
        values = [getattr(sample, name) for sample in samples
                  if getattr(sample, name) is not None]
        axes.plot(values, [height] * len(values), marker, color=color, markersize=7)
    first = samples[0]
    if first.ramanujan_bound is None:
        return
    reach = first.ramanujan_bound / first.mean_degree
    axes.barh(height, 2 * reach, left=1 - reach, height=0.5, color=color, alpha=0.15,
              label='Ramanujan: no other leaves it')
    if first.alon_boppana_bound is not None:
        axes.plot(1 - first.alon_boppana_bound / first.mean_degree, height, '|', color='black',
                  markersize=22, label=r'Alon-Boppana: $\lambda_2$ is below')


if __name__ == '__main__':
    main()
