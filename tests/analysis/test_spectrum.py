"""Spectra that are known in closed form, and the size of what is not."""


import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from analysis.graphs import graph_of_pattern
from analysis.spectrum import spectrum
from graphattn import BipartiteGraph

TWO_PI = 2 * np.pi


def walk_cosines(n):
    return np.sort(1 - np.cos(TWO_PI * np.arange(n) / n))


CLOSED_FORMS = {
    'complete': (nx.complete_graph(7), [0] + [7 / 6] * 6, [0] + [7] * 6),
    'cycle': (nx.cycle_graph(9), walk_cosines(9), 2 * walk_cosines(9)),
    'path': (nx.path_graph(6), 1 - np.cos(np.pi * np.arange(6) / 5),
             2 - 2 * np.cos(np.pi * np.arange(6) / 6)),
    'star': (nx.star_graph(8), [0] + [1] * 7 + [2], [0] + [1] * 7 + [9]),
    'hypercube': (nx.hypercube_graph(4), np.repeat(np.arange(5) / 2, [1, 4, 6, 4, 1]),
                  np.repeat(2 * np.arange(5), [1, 4, 6, 4, 1])),
    'bipartite': (nx.complete_multipartite_graph(3, 5), [0] + [1] * 6 + [2],
                  [0] + [3] * 4 + [5] * 2 + [8]),
    'two cycles': (nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5)),
                   np.repeat(walk_cosines(5), 2), np.repeat(2 * walk_cosines(5), 2)),
    'one node': (nx.empty_graph(1), [0], [0]),
    'no edges': (nx.empty_graph(4), [0] * 4, [0] * 4),
    'isolated node': (nx.disjoint_union(nx.complete_graph(3), nx.empty_graph(1)),
                      [0, 0, 1.5, 1.5], [0, 0, 3, 3]),
}


@pytest.mark.parametrize('name', CLOSED_FORMS)
def test_closed_forms(name):
    graph, *expected = CLOSED_FORMS[name]
    for laplacian, values in zip(('normalized', 'combinatorial'), expected):
        result = spectrum(graph, laplacian=laplacian)
        np.testing.assert_allclose(result.values, values, atol=1e-12)
        assert result.max_residual < 1e-12 and result.residuals.shape == result.values.shape
        assert result.lambda_max == pytest.approx(values[-1], abs=1e-12)
        assert result.num_components == nx.number_connected_components(graph)


@pytest.mark.slow
@pytest.mark.parametrize('laplacian', ['normalized', 'combinatorial'])
def test_disconnected_graph_has_exact_zeros(laplacian, monkeypatch):
    """A solver would return some 1e-17 here, or a third zero that is none."""
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 0)
    parts = [nx.random_regular_graph(4, 150, seed=seed) for seed in (0, 1)]
    graph = nx.disjoint_union(*parts)
    result = spectrum(graph, laplacian=laplacian, extremes=3)
    assert result.lambda_2 == 0 and result.num_components == 2
    assert (result.values[:2] == 0).all() and result.values[2] > 0.1
    assert result.max_residual < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize('laplacian', ['normalized', 'combinatorial'])
@pytest.mark.parametrize('expression', [
    'SlidingWindow(8)', 'star', 'RandomRegular(6)', 'diffuser'])
def test_extremes_are_those_of_the_full_spectrum(expression, laplacian, monkeypatch):
    graph = graph_of_pattern(expression, 400)
    expected = spectrum(graph, laplacian=laplacian)
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 0)
    result = spectrum(graph, laplacian=laplacian, extremes=3)
    scale = expected.values.mean()
    np.testing.assert_allclose(result.values, expected.values[result.index], atol=1e-9 * scale)
    np.testing.assert_array_equal(result.index, [0, 1, 2, 397, 398, 399])
    assert result.max_residual < 1e-8 * scale and 'dense' not in result.method


@pytest.mark.slow
def test_multiple_eigenvalues_are_found_as_often_as_they_occur(monkeypatch):
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 0)
    cycle = spectrum(nx.cycle_graph(300), extremes=5)
    np.testing.assert_allclose(cycle.values[:5], walk_cosines(300)[:5], atol=1e-12)
    assert cycle.method == 'shift-invert'
    star = spectrum(nx.star_graph(400), extremes=4)
    np.testing.assert_allclose(star.values, [0, 1, 1, 1, 1, 1, 1, 2], atol=1e-12)
    assert not spectrum(nx.empty_graph(9), extremes=2).values.any()
    assert not spectrum(torch.zeros(3, 5, dtype=torch.bool), extremes=2).values.any()


def test_few_edges_among_many_tokens():
    graph = sp.coo_array(([1.] * 2, ([0, 1], [1, 0])), shape=(3000, 3000)).tocsr()
    result = spectrum(graph, extremes=2)
    assert result.lambda_2 == 0 and result.num_components == 2999
    assert result.lambda_max == pytest.approx(2, abs=1e-8) and result.values[-2] < 1e-8


@pytest.mark.parametrize('graph, laplacian', [
    (nx.complete_multipartite_graph(6, 60), 'normalized'),  # a pivot is 0
    (nx.hypercube_graph(6), 'combinatorial')])  # what follows a pivot grows
def test_no_eigenvalue_is_missed_where_pivots_are_small(graph, laplacian, monkeypatch):
    everything = spectrum(graph, laplacian=laplacian).values
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 0)
    adjacency = nx.to_scipy_sparse_array(graph)
    order = np.random.default_rng(0).permutation(len(graph))
    result = spectrum(adjacency[order][:, order], laplacian=laplacian, extremes=7)
    assert result.method == 'shift-invert'
    np.testing.assert_allclose(result.values, everything[result.index], atol=1e-9)


@pytest.mark.slow
def test_window_where_smallest_magnitude_is_wrong():
    """``eigsh(which='SM')`` returns 3.0e-5 here, without a warning."""
    window = 'SlidingWindow(8) - SlidingWindow(0)'
    assert spectrum(graph_of_pattern(window, 4096), extremes=2).lambda_2 == pytest.approx(
        7.517e-6, rel=1e-3)


def test_symmetrizations():
    directed = nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 0)])
    adjacency = nx.to_numpy_array(directed)
    for how, symmetric in (('union', np.maximum(adjacency, adjacency.T)),
                           ('mean', (adjacency + adjacency.T) / 2),
                           ('intersection', np.minimum(adjacency, adjacency.T))):
        result = spectrum(directed, laplacian='combinatorial', symmetrization=how)
        expected = np.linalg.eigvalsh(np.diag(symmetric.sum(1)) - symmetric)
        np.testing.assert_allclose(result.values, expected, atol=1e-12)
        assert result.symmetrization == how
    assert spectrum(nx.path_graph(3)).symmetrization == 'not needed'


@pytest.mark.parametrize('extremes', [None, 4])
def test_singular_values(extremes, monkeypatch):
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 20 if extremes else 2048)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(40, 60, generator=generator) < 0.2
    mask[3], mask[:, 7] = False, False
    matrix = mask.double().numpy()
    scale = np.sqrt(np.outer(np.maximum(matrix.sum(1), 1), np.maximum(matrix.sum(0), 1)))
    expected = np.linalg.svd(matrix / scale, compute_uv=False)
    result = spectrum(mask, extremes=extremes)
    np.testing.assert_allclose(result.values, expected[:extremes], atol=1e-10)
    assert result.sigma_2 == pytest.approx(expected[1]) and result.lambda_2 is None
    assert result.max_residual < 1e-8 and result.matrix == 'D_q^-1/2 A D_k^-1/2'


@pytest.mark.parametrize('graph, options, message', [
    (nx.path_graph(5000), {}, 'got 5000.*extremes=6'),
    (nx.path_graph(5), {'extremes': 1}, "'extremes' .*got 1"),
    (nx.path_graph(5), {'laplacian': 'random-walk'}, "'laplacian' .*random-walk"),
    (nx.path_graph(5), {'symmetrization': 'max'}, "'symmetrization' .*max"),
    (BipartiteGraph.from_mask(torch.ones(0, 3, dtype=torch.bool)), {}, "'graph' .*least one")])
def test_bad_input(graph, options, message):
    with pytest.raises(ValueError, match=message):
        spectrum(graph, **options)
