"""Theorems about expansion, on graphs whose values are known."""

import math
from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from analysis.drawings import draw_expander as draw
from analysis.expander import exact_expansion, expander
from analysis.graphs import graph_of_pattern

CONNECTED = {
    'complete': nx.complete_graph(8), 'cycle': nx.cycle_graph(11), 'path': nx.path_graph(9),
    'star': nx.star_graph(7), 'hypercube': nx.hypercube_graph(3), 'petersen': nx.petersen_graph(),
    'barbell': nx.barbell_graph(5, 0), 'bipartite': nx.complete_multipartite_graph(4, 4),
    'margulis': nx.margulis_gabber_galil_graph(3), 'edge': nx.path_graph(2),
    'regular': nx.random_regular_graph(3, 10, seed=0),
}
EXACT = {**{name: CONNECTED[name] for name in ('path', 'cycle', 'petersen', 'star', 'edge')},
         'random': nx.gnp_random_graph(9, 0.4, seed=1),
         'parts': nx.disjoint_union(nx.cycle_graph(3), nx.path_graph(4))}


def adjacency_of(graph):
    return (nx.to_numpy_array(graph) > 0).astype(float)


def by_networkx(graph: nx.Graph) -> dict[str, float]:
    nodes = set(graph)
    sets = [set(chosen) for size in range(1, len(nodes)) for chosen in combinations(nodes, size)]
    half = [chosen for chosen in sets if len(chosen) <= len(nodes) / 2]

    def conductance(chosen: set) -> float:
        return nx.conductance(graph, chosen) if nx.cut_size(graph, chosen) else 0.

    return {
        'exact_conductance': min(map(conductance, sets)),
        'edge_expansion': min(nx.cut_size(graph, chosen) / len(chosen) for chosen in half),
        'vertex_expansion': min(len(nx.node_boundary(graph, chosen)) / len(chosen)
                                for chosen in half),
        'inner_vertex_expansion': min(len(nx.node_boundary(graph, nodes - chosen)) / len(chosen)
                                      for chosen in half)}


@pytest.mark.parametrize('name', EXACT)
def test_least_ratios_are_those_of_all_sets(name):
    found = exact_expansion(nx.to_scipy_sparse_array(EXACT[name], dtype=float, format='csr'))
    assert found == pytest.approx(by_networkx(EXACT[name]))


@pytest.mark.parametrize('name', CONNECTED)
def test_cheeger_and_its_witness(name):
    adjacency = adjacency_of(CONNECTED[name])
    result = expander(CONNECTED[name])
    assert result.cheeger_below - 1e-12 <= result.exact_conductance
    assert result.exact_conductance - 1e-12 <= result.sweep_conductance
    assert result.sweep_conductance <= result.cheeger_above + 1e-12
    inside = np.isin(np.arange(len(adjacency)), result.sweep_set)
    boundary = adjacency[inside][:, ~inside].sum()
    volume = adjacency[inside].sum()
    assert (result.sweep_boundary, result.sweep_volume) == (boundary, volume)
    assert volume <= adjacency.sum() / 2 and result.sweep_size == inside.sum()
    assert result.sweep_conductance == pytest.approx(boundary / volume)
    smaller = min(inside.sum(), (~inside).sum())
    assert result.sweep_expansion == pytest.approx(boundary / smaller)


@pytest.mark.parametrize('name', CONNECTED)
def test_best_epsilon_holds_and_no_smaller_one_does(name):
    adjacency = adjacency_of(CONNECTED[name])
    n = len(adjacency)
    result = expander(CONNECTED[name])
    laplacian = np.diag(adjacency.sum(1)) - adjacency
    complete = (np.eye(n) - np.ones((n, n)) / n) * adjacency.sum() / n

    def holds(epsilon):
        sides = laplacian - (1 - epsilon) * complete, (1 + epsilon) * complete - laplacian
        return min(np.linalg.eigvalsh(side)[0] for side in sides) > -1e-9

    assert holds(result.epsilon + 1e-6) and not holds(result.epsilon - 1e-6)


@pytest.mark.parametrize('name', CONNECTED)
def test_diameter_and_connectivity(name):
    result = expander(CONNECTED[name])
    assert result.diameter == nx.diameter(CONNECTED[name]) and result.diameter_is_exact
    assert result.is_connected and result.is_strongly_connected


@pytest.mark.slow
def test_diameter_of_long_graphs_is_a_bound_that_says_so(monkeypatch):
    graph, cycle = nx.random_regular_graph(4, 300, seed=0), nx.cycle_graph(300)
    exact = expander(graph).diameter
    monkeypatch.setattr('analysis.expander._EXACT_NODES', 100)
    bound = expander(graph)
    assert bound.diameter <= exact == nx.diameter(graph) and not bound.diameter_is_exact
    assert expander(cycle).diameter == 150
    through_hub = expander(graph_of_pattern('star', 300))
    assert through_hub.diameter == 2 and through_hub.diameter_is_exact


@pytest.mark.parametrize('graph, is_ramanujan, second_modulus', [
    (nx.petersen_graph(), True, 2), (nx.complete_graph(6), True, 1),
    (nx.complete_multipartite_graph(4, 4), True, 0), (nx.hypercube_graph(3), True, 1),
    (nx.cycle_graph(30), True, 2 * math.cos(2 * math.pi / 30)), (nx.path_graph(2), True, 0),
    (nx.hypercube_graph(8), False, 6), (nx.circular_ladder_graph(40), False, None),
])
def test_ramanujan(graph, is_ramanujan, second_modulus):
    result = expander(graph)
    assert result.is_ramanujan is is_ramanujan
    if second_modulus is not None:
        assert result.second_modulus == pytest.approx(second_modulus, abs=1e-9)
    if result.alon_boppana_bound is not None:
        assert result.alon_boppana_bound <= graph.degree[next(iter(graph))] - result.adjacency_gap \
            + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize('degree, n', [(3, 200), (4, 500)])
def test_random_regular_graphs(degree, n):
    """Between Alon-Boppana's bound and a little over Friedman's."""
    result = expander(nx.random_regular_graph(degree, n, seed=1))
    mu_2 = degree - result.adjacency_gap
    assert result.is_regular
    assert result.alon_boppana_bound <= mu_2 <= result.ramanujan_bound + 0.1
    assert result.ramanujan_bound == 2 * math.sqrt(degree - 1)
    assert result.second_modulus == pytest.approx(result.epsilon * degree)
    assert result.expander == f'({degree}, {result.epsilon:.3g})'


def test_direction():
    cycle = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    assert expander(cycle).is_strongly_connected and expander(cycle).symmetrization == 'union'
    chain = nx.DiGraph([(0, 1), (1, 2)])
    assert expander(chain).is_connected and not expander(chain).is_strongly_connected
    regular = graph_of_pattern('RandomRegular(4)', 100)
    mean = expander(regular, symmetrization='mean')
    assert mean.is_regular and mean.mean_degree == 4 and mean.is_ramanujan is None
    assert not expander(regular).is_regular


def test_draws_samples_and_graphs_without_a_cut():
    samples = [expander(graph_of_pattern('RandomKeys(3)', 50, seed)) for seed in range(3)]
    figure = draw({'samples': samples, 'one': [expander(nx.empty_graph(1))],
                   'regular': [expander(nx.random_regular_graph(4, 40, seed=0))]})
    assert sum(line.get_xdata().size > 0 for line in figure.axes[0].get_lines()) == 4
