"""Positional encodings, beside PyG's."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
import torch_geometric.transforms as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.utils import erdos_renyi_graph, from_scipy_sparse_matrix

from graphattn import spectra
from graphattn.spectra import NotConverged
from graphattn.transforms import LaplacianPE, RandomSignFlip, RandomWalkPE, laplacian_pe
from tests.test_spectra import GRAPHS, laplacian_and_null_space


def draw(num_nodes: int, weighted: bool = False) -> Data:
    torch.manual_seed(num_nodes)
    edge_index = erdos_renyi_graph(num_nodes, min(1., 8 / num_nodes))
    weight = torch.rand(num_nodes, num_nodes, dtype=torch.double)
    weight = (weight + weight.T)[tuple(edge_index)] if weighted else torch.ones(
        edge_index.size(1), dtype=torch.double)  # PyG computes in float32 without weights
    return Data(edge_index=edge_index, num_nodes=num_nodes, edge_weight=weight,
                x=torch.rand(num_nodes, 2))


ENCODINGS = [RandomWalkPE(6, 'pe'), LaplacianPE(6, 'pe')]
contract = pytest.mark.parametrize('encode', ENCODINGS, ids=lambda encode: type(encode).__name__)


@pytest.fixture(params=['all eigenvalues', 'iteration'])
def solver(request, monkeypatch):
    """Both ways to eigenvectors, for graphs of more than 8 k nodes."""
    if request.param == 'iteration':
        monkeypatch.setattr(laplacian_pe, 'MAX_DENSE', 0)


@contract
@pytest.mark.parametrize('num_nodes', [30, 350])
def test_encodings_follow_their_nodes(encode, num_nodes):
    data = draw(num_nodes, weighted=True)  # weights make every eigenvalue simple
    perm = torch.randperm(num_nodes)
    renamed = Data(edge_index=perm[data.edge_index].flip(1), num_nodes=num_nodes,
                   edge_weight=data.edge_weight.flip(0))
    torch.testing.assert_close(encode(renamed).pe[perm], encode(data).pe, atol=1e-6, rtol=0)


@contract
def test_a_batch_is_encoded_graph_by_graph(encode):
    graphs = [draw(num_nodes, weighted=True) for num_nodes in (12, 5, 30)]
    for graph in graphs:
        graph.edge_weight = graph.edge_weight.float()
    expected = torch.cat([encode(graph).pe for graph in graphs])
    assert torch.equal(Batch.from_data_list([*map(encode, graphs)]).pe, expected)
    torch.testing.assert_close(encode(Batch.from_data_list(graphs)).pe, expected)


@contract
@pytest.mark.parametrize('num_nodes', [0, 1, 2])
def test_graphs_may_be_tiny(encode, num_nodes):
    edge_index = torch.tensor([[0, 1], [1, 0]])[:, :2 * (num_nodes == 2)]
    encoding = encode(Data(edge_index=edge_index, num_nodes=num_nodes)).pe
    assert encoding.shape == (num_nodes, 6) and encoding.isfinite().all()


@contract
def test_graphs_may_have_no_edges(encode):
    encoding = encode(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=9)).pe
    assert encoding.shape == (9, 6) and encoding.isfinite().all()


@pytest.mark.parametrize('num_nodes', [
    12, 99, 250, pytest.param(2_500, marks=pytest.mark.slow)])
def test_eigenvectors_are_pygs_but_for_the_sign(num_nodes, solver):
    data = draw(num_nodes, weighted=True)
    ours = LaplacianPE(5)(data).laplacian_eigenvector_pe
    theirs = pyg.AddLaplacianEigenvectorPE(5, is_undirected=True)(data).laplacian_eigenvector_pe
    torch.testing.assert_close(ours.abs(), theirs.abs().float(), atol=1e-6, rtol=0)
    assert (ours.gather(0, ours.abs().argmax(0, keepdim=True)) > 0).all()


def test_eigenvectors_of_a_repeated_eigenvalue_span_pygs(solver):
    cycle = pyg.ToUndirected()(Data(edge_index=torch.stack([torch.arange(60),
                                                            torch.arange(60).roll(1)])))
    ours = LaplacianPE(6)(cycle).laplacian_eigenvector_pe
    theirs = pyg.AddLaplacianEigenvectorPE(6, is_undirected=True)(cycle).laplacian_eigenvector_pe
    for planes in zip(ours.split(2, 1), theirs.split(2, 1)):
        torch.testing.assert_close(*(plane @ plane.T for plane in planes), atol=1e-5, rtol=0)


@pytest.mark.parametrize('name', GRAPHS)
def test_no_eigenvector_of_a_special_graph_is_missed(name, solver):
    adjacency = nx.to_scipy_sparse_array(GRAPHS[name], dtype=float)
    edge_index, weight = from_scipy_sparse_matrix(adjacency)
    data = Data(edge_index=edge_index, edge_weight=weight, num_nodes=adjacency.shape[0])
    encoding = LaplacianPE(12)(data).laplacian_eigenvector_pe.double().numpy()
    laplacian, _ = laplacian_and_null_space(GRAPHS[name])
    expected = np.linalg.eigvalsh(laplacian.toarray())[1:13]
    found = encoding.T @ (laplacian @ encoding)
    np.testing.assert_allclose(found, np.diag(expected), atol=1e-6)
    np.testing.assert_allclose(encoding.T @ encoding, np.eye(12), atol=1e-6)


def test_components_are_told_apart_first(solver):
    parts = [draw(20), draw(25), draw(30)]
    data = Data(edge_index=torch.cat([part.edge_index + shift for part, shift in
                                      zip(parts, (0, 20, 45))], 1), num_nodes=77)  # two isolated
    encoding = LaplacianPE(4)(data).laplacian_eigenvector_pe.double()
    root = data.edge_index[0].bincount(minlength=77).sqrt()
    of_components = torch.block_diag(*[root[part].unsqueeze(1) for part in (
        slice(0, 20), slice(20, 45), slice(45, 75))])
    of_components = torch.cat([of_components / of_components.norm(dim=0), torch.zeros(2, 3)])
    projected = of_components.double() @ (of_components.T.double() @ encoding)
    torch.testing.assert_close(projected[:, :2], encoding[:, :2], atol=1e-6, rtol=0)
    assert projected[:, 2:].abs().max() < 1e-6 and (encoding.T @ root.double()).abs().max() < 1e-5


def test_self_loops_are_ignored_and_repeated_edges_add_up(solver):
    data = draw(60)
    loops = torch.arange(60).repeat(2, 1)
    data.edge_weight = None
    expected = LaplacianPE(5)(data).laplacian_eigenvector_pe
    data.edge_index = torch.cat([data.edge_index, loops, data.edge_index], 1)
    torch.testing.assert_close(LaplacianPE(5)(data).laplacian_eigenvector_pe, expected, atol=1e-6,
                               rtol=0)


def test_signs_are_drawn_for_every_graph_and_column():
    torch.manual_seed(0)
    graphs = [LaplacianPE(4)(draw(num_nodes, weighted=True)) for num_nodes in (12, 13, 14)]
    batch = Batch.from_data_list(graphs)
    seen = set()
    for _ in range(60):
        ratio = RandomSignFlip()(batch).laplacian_eigenvector_pe / batch.laplacian_eigenvector_pe
        for signs in ratio.split([12, 13, 14]):
            assert (signs == signs[0]).all() and (signs[0].abs() == 1).all()
            seen.add(tuple(signs[0].tolist()))
    assert len(seen) == 16
    assert RandomSignFlip()(graphs[0]).laplacian_eigenvector_pe.shape == (12, 4)


@pytest.mark.parametrize('num_nodes, walk_length', [
    (12, 1), (12, 2), (300, 3), (300, 8), (2_500, 3)])
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


def two(weights: list[float] | None = None, edges: list[list[int]] = ((0, 1), (1, 0))) -> Data:
    return Data(edge_index=torch.tensor(edges), num_nodes=2,
                edge_weight=None if weights is None else torch.tensor(weights))


@contract
@pytest.mark.parametrize('data, error, match', [
    (Data(x=torch.rand(3, 2)), ValueError, r"'data' must.*edge_index.*Data\(x=\[3, 2"),
    (two(edges=[[0, 2], [2, 0]]), ValueError, 'from 0 to 1'),
    (two(edges=[[0, -1], [-1, 0]]), ValueError, 'from 0 to 1'),
    (two([1., -1.]), ValueError, "'edge_weight' .* down to -1.0, in Data.*num_nodes=2"),
    (two([1., torch.nan]), ValueError, "'edge_weight' .* nan"),
    (two([1., torch.inf]), ValueError, "'edge_weight' .* inf"),
    (two([1.]), ValueError, r"'edge_weight' .*\(1,\)"),
    (two([[1.], [1.]]), ValueError, r"'edge_weight' .*\(2, 1\)")])
def test_graphs_that_are_refused(encode, data, error, match):
    with pytest.raises(error, match=match) as refused:
        encode(data)
    assert '\n' not in str(refused.value)


def test_what_has_not_converged_is_refused_by_the_name_of_the_graph(monkeypatch):
    monkeypatch.setattr(laplacian_pe, 'MAX_DENSE', 0)
    monkeypatch.setattr(spectra, 'MAX_PRODUCTS', 1)
    with pytest.raises(NotConverged, match="'k' must.*num_nodes=99.*Random"):
        LaplacianPE(5)(draw(99))


@pytest.mark.parametrize('call, error, match', [
    (lambda: LaplacianPE(0), ValueError, "'k' must be at least 1"),
    (lambda: LaplacianPE(2.), TypeError, "'k' must be an int"),
    (lambda: LaplacianPE(2, is_undirected=1), TypeError, "'is_undirected' must be a bool"),
    (lambda: LaplacianPE(2)(two(edges=[[0], [1]])), ValueError,
     "both directions .*got 1 from 0 to 1 and 0 back in Data.*ToUndirected"),
    (lambda: LaplacianPE(2)(two([1., 2.])), ValueError, 'got 2 from 1 to 0 and 1 back'),
    (lambda: RandomSignFlip()(draw(5)), ValueError, "'laplacian_eigenvector_pe'.*attr"),
    (lambda: RandomWalkPE(0), ValueError, "'walk_length' must be at least 1"),
    (lambda: RandomWalkPE(2.), TypeError, "'walk_length' must be an int")])
def test_what_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
