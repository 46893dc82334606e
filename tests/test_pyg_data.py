"""Graphs to and from PyG's Data, HeteroData and batches of them."""

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.typing import WITH_TORCH_SPARSE

from graphattn import BipartiteGraph
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


def without(data: Data, *names: str) -> Data:
    data = data.clone()
    for name in names:
        del data[name]
    return data


def test_the_graphs_of_a_batch_are_segments():
    molecules = [molecule(size) for size in (3, 1, 4)]
    expected = BipartiteGraph.batch([*map(BipartiteGraph.from_data, molecules)])
    for batch in (Batch.from_data_list(molecules), next(iter(DataLoader(molecules, 3)))):
        assert rows(BipartiteGraph.from_data(batch)) == rows(expected)


@pytest.mark.parametrize('with_prob', [False, True])
@pytest.mark.parametrize('name', GRAPHS)
def test_a_graph_comes_back(name, with_prob):
    graph = GRAPHS[name]()
    if with_prob:
        graph = graph.with_edge_prob(torch.rand(graph.num_edges, requires_grad=True))
    ways = [True, False] if graph.is_square else [True]
    for bipartite in ways:
        data = graph.to_data(bipartite)
        assert data.validate() and BipartiteGraph.from_data(data) == graph
        if with_prob and graph.num_edges:
            assert BipartiteGraph.from_data(data).edge_prob.requires_grad
    if not graph.is_square:
        with pytest.raises(ValueError, match="'to_data' needs equal numbers .*bipartite=True"):
            graph.to_data()


@pytest.mark.parametrize('bipartite', [False, True])
def test_graphs_are_batched_by_pyg(bipartite):
    graphs = [GRAPHS[name]() for name in ('square', 'no_tokens', 'one_token', 'full')]
    graphs = [graph.with_edge_prob(torch.rand(graph.num_edges)) for graph in graphs]
    batch = Batch.from_data_list([graph.to_data(bipartite) for graph in graphs])
    assert BipartiteGraph.from_data(batch) == BipartiteGraph.batch(graphs)


@pytest.mark.parametrize('name', ['idle_tokens', 'more_keys', 'no_edges'])
def test_a_transposed_adjacency_has_the_direction_of_the_edges(name):
    graph = GRAPHS[name]()
    data = graph.to_data(bipartite=True)
    for layout in [None] * WITH_TORCH_SPARSE + [torch.sparse_csr, torch.sparse_coo]:
        assert BipartiteGraph.from_data(ToSparseTensor(layout=layout)(data)) == graph


class Pair(Data):
    def __inc__(self, key, value, *args):
        sizes = [[self.x_s.size(0)], [self.x_t.size(0)]]
        return torch.tensor(sizes) if key == 'edge_index' else super().__inc__(key, value, *args)


@pytest.mark.parametrize('kind', [Pair, Data])
def test_two_node_sets_are_a_rectangular_graph(kind):
    graphs = [GRAPHS[name]() for name in ('more_keys', 'square', 'more_keys')]
    graphs = [BipartiteGraph.from_edge_index(
        graph.edge_index.as_tensor(), graph.num_queries, graph.num_keys,
        edge_prob=torch.rand(graph.num_edges)) for graph in graphs]
    pairs = [kind(edge_index=graph.edge_index.as_tensor(), edge_prob=graph.edge_prob,
                  x_s=torch.rand(graph.num_keys, 2), x_t=torch.rand(graph.num_queries))
             for graph in graphs]
    assert BipartiteGraph.from_data(pairs[0]) == graphs[0]
    batch = Batch.from_data_list(pairs, follow_batch=['x_s', 'x_t'])
    assert BipartiteGraph.from_data(batch) == BipartiteGraph.batch(graphs)


def test_data_of_several_segments_are_a_batch_of_them():
    graphs = [GRAPHS[name]() for name in ('square', 'no_tokens', 'one_token', 'full')]
    data = BipartiteGraph.batch(graphs).to_data()
    assert [*map(BipartiteGraph.from_data, data.to_data_list())] == graphs


def test_nodes_that_were_moved_after_batching_are_refused():
    batch = Batch.from_data_list([*map(molecule, (3, 1, 4))])
    moved = batch.clone()
    moved.batch = moved.batch.flip(0)
    with pytest.raises(ValueError, match="'batch' must agree with 'ptr'"):
        BipartiteGraph.from_data(moved)
    with pytest.raises(ValueError, match="'batch' must ascend"):
        BipartiteGraph.from_data(without(moved, 'ptr'))
    with pytest.raises(ValueError, match="'ptr' must rise from 0 to 4"):
        BipartiteGraph.from_data(batch.subgraph(torch.arange(4)))
    with pytest.raises(ValueError, match="[Ee]dge.*segment"):
        batch.edge_index = torch.tensor([[0], [7]])
        BipartiteGraph.from_data(batch)


def two_types() -> HeteroData:
    data = authors()
    data['paper', 'cites', 'paper'].edge_index = torch.tensor([[0], [1]])
    return data


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
@pytest.mark.parametrize('arguments, error, match', [
    ((torch.zeros(2, 3).long(),), TypeError, "'data' must be a PyG Data .*got Tensor"),
    ((Data(num_nodes=3),), ValueError, "'data' must.*'edge_index' .got Data.num_nodes=3"),
    ((Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, edge_prob=torch.rand(2)),),
     ValueError, "'edge_prob' must.*1"),
    ((HeteroData({('a', 'to', 'b'): {'edge_index': torch.tensor([[0], [1]])}}),), ValueError,
     "'num_nodes' must be set"),
    ((Data(edge_index=torch.tensor([[3], [0]]), num_nodes=3),), ValueError, "got 3 to 3"),
    ((molecule(2), ('a', 'to', 'b')), ValueError, "'edge_type'.*HeteroData"),
    ((two_types(),), ValueError, "'edge_type' must be one of .*got None"),
    ((authors(), ('paper', 'cites', 'paper')), ValueError, "'edge_type' must be one of"),
])
def test_invalid_data_is_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        BipartiteGraph.from_data(*arguments)


def test_from_edge_index_points_to_from_data():
    with pytest.raises(TypeError, match="'edge_index' must be .*got Data.*from_data"):
        BipartiteGraph.from_edge_index(molecule(2), 2)
