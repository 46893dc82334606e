"""Positional encodings, beside PyG's."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.transforms as pyg
from torch_geometric.data import Data
from torch_geometric.utils import barabasi_albert_graph, erdos_renyi_graph

from graphattn.transforms import RandomWalkPE


def draw(num_nodes: int, weighted: bool = False) -> Data:
    torch.manual_seed(num_nodes)
    edge_index = barabasi_albert_graph(num_nodes, 3)
    weight = torch.rand(num_nodes, num_nodes, dtype=torch.double)
    weight = (weight + weight.T)[tuple(edge_index)] if weighted else torch.ones(
        edge_index.size(1), dtype=torch.double)  # PyG computes in float32 without weights
    return Data(edge_index=edge_index, num_nodes=num_nodes, edge_weight=weight,
                x=torch.rand(num_nodes, 2))


@pytest.mark.parametrize('walk_length', [1, 2, 3, 8])
@pytest.mark.parametrize('num_nodes', [12, 300, 2_500])
def test_return_probabilities_are_pygs(num_nodes, walk_length):
    data = draw(num_nodes)
    data.edge_weight = None
    ours = RandomWalkPE(walk_length)(data).random_walk_pe
    theirs = pyg.AddRandomWalkPE(walk_length)(data).random_walk_pe
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_walks_prefer_heavy_edges():
    data = draw(20, weighted=True)
    step = torch.zeros(20, 20, dtype=torch.double)
    step[tuple(data.edge_index)] = data.edge_weight
    step /= step.sum(dim=1, keepdim=True)
    powers = [torch.linalg.matrix_power(step, k).diagonal() for k in range(1, 6)]
    torch.testing.assert_close(RandomWalkPE(5)(data).random_walk_pe,
                               torch.stack(powers, dim=1).float())


def test_walks_follow_directed_edges():
    data = Data(edge_index=erdos_renyi_graph(40, .1, directed=True), num_nodes=40)
    torch.testing.assert_close(RandomWalkPE(6)(data).random_walk_pe,
                               pyg.AddRandomWalkPE(6)(data).random_walk_pe)


def test_encodings_are_appended_to_features_in_a_chain():
    data = pyg.Compose([pyg.ToUndirected(), RandomWalkPE(5, attr_name=None)])(draw(30))
    assert data.x.shape == (30, 7) and data.x.dtype == torch.float


@pytest.mark.parametrize('call, error, match', [
    (lambda: RandomWalkPE(0), ValueError, "'walk_length' must be at least 1"),
    (lambda: RandomWalkPE(2.), TypeError, "'walk_length' must be an int"),
    (lambda: RandomWalkPE(2)(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2,
                                  edge_weight=torch.tensor([-1.]))), ValueError,
     "'edge_weight' .* down to -1.0"),
    (lambda: RandomWalkPE(2)(Data(x=torch.rand(3, 2))), ValueError, "'data' must have an edge")])
def test_what_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
