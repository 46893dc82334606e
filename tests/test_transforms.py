"""Positional encodings, beside PyG's."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.transforms as pyg
from torch_geometric.data import Data
from torch_geometric.utils import barabasi_albert_graph, erdos_renyi_graph

from graphattn.transforms import LaplacianPE, RandomWalkPE


def draw(num_nodes: int, weighted: bool = False) -> Data:
    torch.manual_seed(num_nodes)
    edge_index = barabasi_albert_graph(num_nodes, 3)
    weight = torch.rand(num_nodes, num_nodes, dtype=torch.double)
    weight = (weight + weight.T)[tuple(edge_index)] if weighted else torch.ones(
        edge_index.size(1), dtype=torch.double)  # PyG computes in float32 without weights
    return Data(edge_index=edge_index, num_nodes=num_nodes, edge_weight=weight,
                x=torch.rand(num_nodes, 2))


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('num_nodes', [12, 99, 100, 400])
def test_eigenvectors_are_pygs_up_to_sign(num_nodes, weighted):
    data = draw(num_nodes, weighted)
    ours = LaplacianPE(4)(data).laplacian_pe
    theirs = pyg.AddLaplacianEigenvectorPE(4, is_undirected=True)(data).laplacian_eigenvector_pe
    agree = (ours * theirs).sum(dim=0).sign()
    torch.testing.assert_close(ours, (theirs * agree).float(), atol=1e-6, rtol=0)


def test_signs_are_fixed_or_drawn():
    data = draw(120)
    fixed = LaplacianPE(5)(data).laplacian_pe
    assert (fixed.gather(0, fixed.abs().argmax(dim=0)[None]) > 0).all()
    assert torch.equal(LaplacianPE(5)(data).laplacian_pe, fixed)
    drawn = {tuple((LaplacianPE(5, random_signs=True)(data).laplacian_pe * fixed).sum(0)
                   .sign().tolist()) for _ in range(20)}
    assert len(drawn) > 1


@pytest.mark.parametrize('num_nodes', [1, 2, 3])
def test_small_graphs_get_zeros_for_what_they_lack(num_nodes):
    edges = torch.tensor([[0], [num_nodes - 1]])
    data = pyg.ToUndirected()(Data(edge_index=edges, num_nodes=num_nodes))
    encoding = LaplacianPE(4)(data).laplacian_pe
    assert encoding.shape == (num_nodes, 4) and (encoding[:, num_nodes - 1:] == 0).all()


@pytest.mark.parametrize('walk_length', [1, 2, 3, 8])
@pytest.mark.parametrize('num_nodes', [12, 2_500])
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


@pytest.mark.parametrize('transform, width', [(LaplacianPE(3, attr_name=None), 3),
                                              (RandomWalkPE(5, attr_name=None), 5)])
def test_encodings_are_appended_to_features_in_a_chain(transform, width):
    data = pyg.Compose([pyg.ToUndirected(), transform])(draw(30))
    assert data.x.shape == (30, 2 + width) and data.x.dtype == torch.float


@pytest.mark.parametrize('call, error, match', [
    (lambda: LaplacianPE(0), ValueError, "'k' must be at least 1"),
    (lambda: LaplacianPE(2, random_signs=1), TypeError, "'random_signs' must be a bool"),
    (lambda: RandomWalkPE(2.), TypeError, "'walk_length' must be an int"),
    (lambda: LaplacianPE(2)(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)), ValueError,
     "'edge_index' must be undirected.*ToUndirected"),
    (lambda: RandomWalkPE(2)(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2,
                                  edge_weight=torch.tensor([-1.]))), ValueError,
     "'edge_weight' .* down to -1.0"),
    (lambda: LaplacianPE(2)(Data(x=torch.rand(3, 2))), ValueError, "'data' must have an edge_ind")])
def test_what_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
