"""Graphs to and from PyG's Data, HeteroData and batches of them."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

from graphattn import BipartiteGraph
from graphattn.patterns import RandomKeys, SlidingWindow
from tests.graphs import GRAPHS


def molecule(num_nodes: int) -> Data:
    """A path in both directions, its edges in no order."""
    path = torch.arange(num_nodes - 1)
    edge_index = torch.stack([torch.cat([path, path + 1]), torch.cat([path + 1, path])])
    return Data(edge_index=edge_index.flip(1), num_nodes=num_nodes)


def authors() -> HeteroData:
    data = HeteroData()
    data['author'].num_nodes, data['paper'].num_nodes = 3, 2
    data['author', 'writes', 'paper'].edge_index = torch.tensor([[2, 0, 1], [1, 0, 1]])
    return data


def rows(graph: BipartiteGraph) -> list:
    return [part.tolist() for part in (*graph.csr, *graph.segments.ptrs)]


def test_a_graph_of_nodes_is_square():
    graph = BipartiteGraph.from_data(molecule(3))
    assert graph.edge_index.as_tensor().tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    assert (graph.num_queries, graph.num_keys, graph.num_segments) == (3, 3, 1)


def test_the_graphs_of_a_batch_are_segments():
    molecules = [molecule(size) for size in (3, 1, 4)]
    expected = BipartiteGraph.batch([*map(BipartiteGraph.from_data, molecules)])
    for batch in (Batch.from_data_list(molecules), next(iter(DataLoader(molecules, 3)))):
        assert rows(BipartiteGraph.from_data(batch)) == rows(expected)


def test_sources_are_keys_and_targets_queries():
    graph = BipartiteGraph.from_data(authors())
    assert (graph.num_queries, graph.num_keys) == (2, 3)
    assert graph.to_mask().tolist() == [[True, False, False], [False, True, True]]
    both = BipartiteGraph.from_data(Batch.from_data_list([authors(), authors()]))
    assert rows(both) == rows(BipartiteGraph.batch([graph, graph]))


@pytest.mark.parametrize('name', GRAPHS)
def test_a_graph_comes_back(name):
    graph = GRAPHS[name]()
    assert rows(BipartiteGraph.from_data(graph.to_data(bipartite=True))) == rows(graph)
    if graph.is_square:
        assert rows(BipartiteGraph.from_data(graph.to_data())) == rows(graph)
    else:
        with pytest.raises(ValueError, match="'to_data' needs as many keys .*bipartite=True"):
            graph.to_data()


def test_probabilities_go_along():
    graph = SlidingWindow(1).build(4)
    graph = graph.with_edge_prob(torch.rand(graph.num_edges))
    assert torch.equal(graph.to_data().edge_prob, graph.edge_prob)
    assert torch.equal(graph.to_data(True)['key', 'to', 'query'].edge_prob, graph.edge_prob)
    assert 'edge_prob' not in RandomKeys(1).build(4, seed=0).to_data()


def two_types() -> HeteroData:
    data = authors()
    data['paper', 'cites', 'paper'].edge_index = torch.tensor([[0], [1]])
    return data


def test_one_of_several_types_is_chosen():
    graph = BipartiteGraph.from_data(two_types(), ('paper', 'cites', 'paper'))
    assert graph.to_mask().tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize('arguments, error, match', [
    ((torch.zeros(2, 3).long(),), TypeError, "'data' must be a PyG Data .*got Tensor"),
    ((Data(num_nodes=3),), ValueError, "'data' must have an 'edge_index'"),
    ((Data(edge_index=torch.tensor([[3], [0]]), num_nodes=3),), ValueError, "got 3 to 3"),
    ((molecule(2), ('a', 'to', 'b')), ValueError, "'edge_type' is for HeteroData"),
    ((two_types(),), ValueError, "'edge_type' must be one of .*got None"),
    ((authors(), ('paper', 'cites', 'paper')), ValueError, "'edge_type' must be one of"),
])
def test_invalid_data_is_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        BipartiteGraph.from_data(*arguments)


def test_from_edge_index_points_to_from_data():
    with pytest.raises(TypeError, match="'edge_index' must be .*got Data.*from_data"):
        BipartiteGraph.from_edge_index(molecule(2), 2)
