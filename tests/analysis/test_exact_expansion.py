"""Expansion over all sets, against networkx set by set and against what is known of graphs."""

from itertools import combinations

import networkx as nx
import pytest

from analysis.expander import exact_expansion

GRAPHS = {'path': nx.path_graph(7), 'cycle': nx.cycle_graph(8), 'complete': nx.complete_graph(6),
          'petersen': nx.petersen_graph(), 'star': nx.star_graph(6), 'two': nx.path_graph(2),
          'random': nx.gnp_random_graph(9, 0.4, seed=1), 'parts': nx.disjoint_union(
              nx.cycle_graph(3), nx.path_graph(4)), 'barbell': nx.barbell_graph(4, 1)}


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


@pytest.mark.parametrize('name', GRAPHS)
def test_least_ratios_are_those_of_all_sets(name):
    found = exact_expansion(nx.to_scipy_sparse_array(GRAPHS[name], dtype=float, format='csr'))
    assert found == pytest.approx(by_networkx(GRAPHS[name]))
