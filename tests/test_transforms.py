"""Transforms, beside PyG's, of graphs and of batches."""

from itertools import permutations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch_geometric.transforms as pyg
from scipy.sparse.linalg import ArpackNoConvergence
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import BaseTransform, Compose
from torch_geometric.utils import erdos_renyi_graph, from_scipy_sparse_matrix

from graphattn import transforms
from graphattn.transforms import AddAttentionEdges, LaplacianPE, RandomSignFlip


def weighted(graph: nx.Graph) -> nx.Graph:
    draw = np.random.default_rng(0)
    for _, _, edge in graph.edges(data=True):
        edge['weight'] = 10**draw.uniform(-3, 3)
    return graph


GRAPHS = {
    'path': nx.path_graph(200), 'cycle': nx.cycle_graph(201), 'star': nx.star_graph(200),
    'complete': nx.complete_graph(200), 'bipartite': nx.complete_bipartite_graph(80, 120),
    'hypercube': nx.hypercube_graph(7), 'mesh': nx.grid_2d_graph(15, 15),
    'barbell': nx.barbell_graph(60, 80), 'tree': nx.balanced_tree(3, 4),
    'hubs': nx.barabasi_albert_graph(200, 3, seed=0),
    'expander': nx.random_regular_graph(4, 200, seed=0),
    'weighted': weighted(nx.watts_strogatz_graph(200, 6, 0.2, seed=0)),
    'disconnected': nx.disjoint_union_all([nx.path_graph(2), nx.cycle_graph(150)] * 2),
    'equal parts': nx.disjoint_union_all([nx.cycle_graph(7)] * 40),
}


def draw(num_nodes: int, weighted: bool = False) -> Data:
    torch.manual_seed(num_nodes)
    edge_index = erdos_renyi_graph(num_nodes, min(1., 8 / max(num_nodes, 1)))
    weight = torch.rand(num_nodes, num_nodes, dtype=torch.double)
    weight = (weight + weight.T)[tuple(edge_index)] if weighted else torch.ones(
        edge_index.size(1), dtype=torch.double)  # PyG computes in float32 without weights
    return Data(edge_index=edge_index, num_nodes=num_nodes, edge_weight=weight,
                x=torch.rand(num_nodes, 2))


encode = LaplacianPE(6, 'pe')


@pytest.fixture(params=['all eigenvalues', 'iteration'])
def solver(request, monkeypatch):
    """Both ways to eigenvectors, for graphs of more than 8 k nodes."""
    if request.param == 'iteration':
        monkeypatch.setattr(transforms, 'MAX_DENSE', 0)


@pytest.mark.parametrize('num_nodes', [30, 350])
def test_encodings_follow_their_nodes(num_nodes):
    data = draw(num_nodes, weighted=True)  # weights make every eigenvalue simple
    perm = torch.randperm(num_nodes)
    renamed = Data(edge_index=perm[data.edge_index].flip(1), num_nodes=num_nodes,
                   edge_weight=data.edge_weight.flip(0))
    torch.testing.assert_close(encode(renamed).pe[perm], encode(data).pe, atol=1e-6, rtol=0)


@pytest.mark.parametrize('num_nodes', [0, 1, 2, 9])
def test_graphs_may_be_tiny_and_without_edges(num_nodes):
    edge_index = torch.tensor([[0, 1], [1, 0]])[:, :2 * (num_nodes == 2)]
    encoding = encode(Data(edge_index=edge_index, num_nodes=num_nodes)).pe
    assert encoding.shape == (num_nodes, 6) and encoding.isfinite().all()


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
    root = np.sqrt(adjacency.sum(axis=0))
    laplacian = sp.csr_array(sp.eye_array(len(root)) - adjacency.multiply(1 / np.outer(root, root)))
    expected = np.linalg.eigvalsh(laplacian.toarray())[1:13]
    found = encoding.T @ (laplacian @ encoding)
    np.testing.assert_allclose(found, np.diag(expected), atol=1e-6)
    np.testing.assert_allclose(encoding.T @ encoding, np.eye(12), atol=1e-6)


def test_a_basis_that_does_not_suffice_grows(monkeypatch):
    sizes, original = [], transforms.eigsh

    def eigsh(*args, ncv, **options):
        sizes.append(ncv)
        if ncv < 150:
            raise ArpackNoConvergence('%s', [], [])
        return original(*args, ncv=ncv, **options)

    expected = LaplacianPE(4)(draw(150)).laplacian_eigenvector_pe
    monkeypatch.setattr(transforms, 'MAX_DENSE', 0)
    monkeypatch.setattr(transforms, 'eigsh', eigsh)
    found = LaplacianPE(4)(draw(150)).laplacian_eigenvector_pe
    assert sizes == [40, 150]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


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


def two(weights: list[float] | None = None, edges: list[list[int]] = ((0, 1), (1, 0))) -> Data:
    return Data(edge_index=torch.tensor(edges), num_nodes=2,
                edge_weight=None if weights is None else torch.tensor(weights))


@pytest.mark.parametrize('data, match', [
    (Data(x=torch.rand(3, 2)), r"'data' must.*edge_index.*Data\(x=\[3, 2"),
    (two(edges=[[0, 2], [2, 0]]), 'from 0 to 1'), (two(edges=[[0, -1], [-1, 0]]), 'from 0 to 1'),
    (two([1., -1.]), "'edge_weight' .* down to -1.0, in Data.*num_nodes=2"),
    (two([1., torch.nan]), "'edge_weight' .* nan"), (two([1., torch.inf]), "'edge_weight' .* inf"),
    (two([1.]), r"'edge_weight' .*\(1,\)"), (two([[1.], [1.]]), r"'edge_weight' .*\(2, 1\)"),
    (two(edges=[[0], [1]]), 'both directions .*got 1 from 0 to 1 and 0 back in Data'),
    (two([1., 2.]), 'got 2 from 1 to 0 and 1 back'),
    (Data(edge_index=torch.tensor([[0, 1], [1, 0]]), batch=torch.tensor([0, 1]), num_nodes=2),
     "'edge_index' must not join different graphs.*Data")])
def test_graphs_that_are_refused(data, match):
    with pytest.raises(ValueError, match=match):
        encode(data)


def test_what_has_not_converged_is_refused_by_the_name_of_the_graph(monkeypatch):
    def fail(*args, **kwargs):
        raise ArpackNoConvergence('none of 5 eigenvectors', [], [])

    monkeypatch.setattr(transforms, 'MAX_DENSE', 0)
    monkeypatch.setattr(transforms, 'eigsh', fail)
    with pytest.raises(RuntimeError, match="'k' must.*num_nodes=99.*none of 5.*Random"):
        LaplacianPE(5)(draw(99))


@pytest.mark.parametrize('call, error, match', [
    (lambda: LaplacianPE(0), ValueError, "'k' must be at least 1"),
    (lambda: LaplacianPE(2.), TypeError, "'k' must be an int"),
    (lambda: LaplacianPE(2, is_undirected=1), TypeError, "'is_undirected' must be a bool"),
    (lambda: RandomSignFlip()(draw(5)), ValueError, "'laplacian_eigenvector_pe'.*attr")])
def test_what_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


# Batches #############################################################################

# Each transform of the package: as an attribute, and joined with one that is there.
TRANSFORMS: dict[str, BaseTransform] = {
    'LaplacianPE': LaplacianPE(3), 'LaplacianPE in x': LaplacianPE(3, None),
    'RandomSignFlip': RandomSignFlip('signed'),
    'AddAttentionEdges': AddAttentionEdges('RandomRegular(2)'),
    'AddAttentionEdges in edge_index': AddAttentionEdges(
        'Full() - SlidingWindow(0)', None, fill={'edge_weight': .5}),
}
WAYS = [*TRANSFORMS, *permutations(TRANSFORMS, 2)]


def transform_of(way: str | tuple[str, str]) -> BaseTransform:
    names = [way] if isinstance(way, str) else way
    return Compose([TRANSFORMS[name] for name in names])


def molecules() -> list[Data]:
    graphs = [draw(num_nodes, weighted=True) for num_nodes in (12, 1, 5, 0, 3)]
    return [Data(**graph.to_dict(), y=torch.tensor([graph.num_nodes]), name=str(graph.num_nodes),
                 signed=graph.x + 1) for graph in graphs]


def values_of(data: Data) -> dict[str, object]:
    return {key: value for key, value in data.to_dict().items() if key not in ('batch', 'ptr')}


def test_every_transform_is_in_the_contract():
    assert {type(transform).__name__ for transform in TRANSFORMS.values()} == {
        *transforms.__all__}


@pytest.mark.parametrize('way', WAYS, ids=str)
def test_a_batch_is_transformed_as_its_graphs_and_comes_apart(way):
    transform = transform_of(way)
    expected = [transform(graph) for graph in molecules()]
    batch = Batch.from_data_list(molecules())
    batch.later = torch.arange(batch.num_nodes)  # as PyG's transforms of a batch set it
    before = batch.to_dict()
    together = transform(batch)
    whole = Batch.from_data_list(expected)
    assert torch.equal(together.later, batch.later)
    for number, graph in enumerate(expected):
        compare(values_of(together[number]), values_of(graph))
    compare({**values_of(together), 'later': None}, {**values_of(whole), 'later': None})
    compare(batch.to_dict(), before)  # the original is as it was


def compare(found: dict[str, object], expected: dict[str, object]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        other = found[key]
        if key == 'signed':  # signs are drawn in another order
            value, other = value.abs(), other.abs()
        if isinstance(value, Tensor):
            torch.testing.assert_close(other, value)
        else:
            assert other == value, key


@pytest.mark.parametrize('name', TRANSFORMS)
def test_heterogeneous_data_are_refused_by_name(name):
    data = HeteroData()
    data['a'].x, data['a'].signed = torch.rand(3, 2), torch.rand(3, 2)
    data['a', 'to', 'a'].edge_index = torch.tensor([[0, 1], [1, 0]])
    for each in (data, Batch.from_data_list([data])):
        with pytest.raises(TypeError, match="'data' must be a PyG Data.*Hetero.*to_homogeneous"):
            TRANSFORMS[name](each)


def test_edges_that_joined_a_batch_are_encoded():
    graphs = [pyg.ToUndirected()(draw(num_nodes)) for num_nodes in (8, 9)]
    batch = pyg.ToUndirected()(Batch.from_data_list([Data(
        edge_index=graph.edge_index[:, :3], num_nodes=graph.num_nodes) for graph in graphs]))
    expected = [LaplacianPE(3, 'pe')(pyg.ToUndirected()(Data(
        edge_index=graph.edge_index[:, :3], num_nodes=graph.num_nodes))).pe for graph in graphs]
    torch.testing.assert_close(LaplacianPE(3, 'pe')(batch).pe, torch.cat(expected))
