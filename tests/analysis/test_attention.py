"""Rank, capacity and direction of attention matrices, against definitions and networkx."""

import math
from itertools import chain, combinations

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn.functional import linear

from analysis.attention import _asymmetry_of as asymmetry
from analysis.attention import attention, directed_laplacian
from analysis.drawings import draw_attention as draw
from analysis.graphs import graph_of_pattern
from analysis.runs import attention_of
from graphattn.models import Encoder, SequenceClassifier
from graphattn.sources import BlockModelSource, LearnedMaskSource
from tests.analysis.test_weights import weighted

RNG = np.random.default_rng(0)


def rectangle(num_queries=6, num_keys=4, seed=0):
    rng = np.random.default_rng(seed)
    shape = num_queries, num_keys
    return sp.csr_array((rng.random(shape) < 0.6) * rng.uniform(0.1, 3, shape))


MATRICES = {
    'square': weighted(9), 'no loops': weighted(8, loops=False), 'wide': rectangle(4, 7),
    'tall': rectangle(8, 3), 'causal': sp.csr_array(np.tril(RNG.random((7, 7)))),
    'two parts': sp.csr_array(sp.block_diag([rectangle(3, 3), rectangle(4, 4)])),
    'a row': sp.csr_array([[1., 2., 0.]]), 'one': sp.csr_array([[3.]]),
    'idle': sp.csr_array(np.pad(weighted(5).toarray(), ((0, 2), (0, 1)))),
    'no edges': sp.csr_array((3, 3))}
matrices = pytest.mark.parametrize('name', MATRICES)


def rows_of(matrix):
    dense = matrix.toarray()
    total = dense.sum(axis=1, keepdims=True)
    return dense / np.where(total > 0, total, 1)


@matrices
def test_singular_values_and_ranks_follow_their_definitions(name):
    dense, result = rows_of(MATRICES[name]), attention(MATRICES[name])
    values = np.linalg.svd(dense, compute_uv=False)
    np.testing.assert_allclose(result.singular_values, values, atol=1e-12)
    if not dense.any():
        assert result.effective_rank == result.stable_rank == result.gap == 0
        return
    shares = values[values > 1e-14] / values.sum()
    assert result.effective_rank == pytest.approx(math.exp(-sum(shares * np.log(shares))))
    assert result.stable_rank == pytest.approx((dense**2).sum() / values[0]**2)
    if len(values) > 1:
        assert result.gap == pytest.approx(values[0] - values[1])


@matrices
def test_distances_from_uniform_follow_their_definition(name):
    dense, result = rows_of(MATRICES[name]), attention(MATRICES[name])
    own = dense[dense.any(axis=1)]
    if not len(own):
        assert result.from_uniform is result.from_uniform_on_edges is None
        return
    uniform = (own > 0) / (own > 0).sum(axis=1, keepdims=True)
    assert result.from_uniform == pytest.approx(
        np.abs(own - 1 / own.shape[1]).sum(axis=1).mean() / 2)
    assert result.from_uniform_on_edges == pytest.approx(
        np.abs(own - uniform).sum(axis=1).mean() / 2)


@pytest.mark.parametrize('matrix', [
    weighted(60, 0.1), rectangle(50, 70), sp.csr_array(sp.block_diag([weighted(30, 0.2)] * 3)),
    sp.csr_array(sp.eye_array(70)), graph_of_pattern('SlidingWindow(2)', 80).to_scipy(),
    sp.csr_array((60, 60)), sp.csr_array(np.pad(weighted(50).toarray(), ((3, 0), (9, 0))))])
def test_two_singular_values_of_a_large_matrix(matrix, monkeypatch):
    """Also if the largest occurs several times, once in each part of the matrix."""
    expected = attention(matrix)
    monkeypatch.setattr('analysis.attention.DENSE_TOKENS', 5)
    result = attention(matrix)
    np.testing.assert_allclose(result.singular_values, expected.singular_values[:2], atol=1e-9)
    assert result.stable_rank == pytest.approx(expected.stable_rank)
    assert result.effective_rank is None


def joined(matrix):
    """Return the graph that joins queries to keys, without nodes that have no edge."""
    dense = rows_of(matrix)
    graph = nx.Graph()
    graph.add_weighted_edges_from((('query', i), ('key', j), dense[i, j])
                                  for i, j in zip(*dense.nonzero()))
    return graph


def least_conductance(graph):
    nodes = list(graph)
    sets = chain.from_iterable(combinations(nodes, size) for size in range(1, len(nodes)))
    return min(nx.conductance(graph, chosen, weight='weight') for chosen in sets)


@matrices
def test_the_bipartite_cheeger_number_is_the_least_conductance(name):
    graph, result = joined(MATRICES[name]), attention(MATRICES[name])
    if not len(graph):
        assert result.phi is result.phi_below is result.phi_above is None
        return
    if len(graph) <= 14:
        assert result.phi == pytest.approx(least_conductance(graph), abs=1e-12)
    assert result.phi_below - 1e-12 <= result.phi <= result.phi_above + 1e-12
    assert result.phi_above <= math.sqrt(2 * result.transport_gap) + 1e-12
    dense = rows_of(MATRICES[name])
    dense = dense[dense.any(axis=1)][:, dense.any(axis=0)]
    degrees = np.outer(dense.sum(axis=1), dense.sum(axis=0))
    sigma = [*np.linalg.svd(dense / np.sqrt(degrees), compute_uv=False), 0]  # of a row or column
    assert result.transport_gap == pytest.approx(1 - sigma[1], abs=1e-12)


@pytest.mark.slow
def test_uniform_causal_attention_has_a_floor():
    """Self-Attention as Transport: at least 1/5 at every length."""
    for n in range(2, 11):
        assert attention(graph_of_pattern('Causal()', n)).phi >= 1 / 5


@matrices
def test_asymmetry_follows_its_definition(name):
    matrix = MATRICES[name]
    if matrix.shape[0] != matrix.shape[1] or matrix.nnz == 0:
        assert asymmetry(matrix) is None
        return
    dense = matrix.toarray()
    norm = np.linalg.norm
    assert asymmetry(matrix) == pytest.approx(
        norm(dense - dense.T) / math.sqrt(2) / norm(dense), abs=1e-12)
    assert asymmetry(matrix) == pytest.approx(asymmetry(matrix.T), abs=1e-15)


def test_only_the_shares_tell_a_matrix_from_its_transpose():
    """The walk is doubly stochastic: the rows of its transpose sum to 1 too."""
    forth = sp.csr_array(0.7 * np.roll(np.eye(9), 1, axis=1) + 0.3 * np.eye(9))
    ahead, back = attention(forth), attention(sp.csr_array(forth.T))
    for name in ('transport_gap', 'phi', 'asymmetry', 'sigma_2', 'directed_gap'):
        assert getattr(ahead, name) == pytest.approx(getattr(back, name), abs=1e-12)
    assert ahead.to_later == pytest.approx(0.7 * 8 / 9) == back.to_earlier
    assert ahead.to_self == pytest.approx(0.3)
    assert ahead.mean_distance == pytest.approx(0.7 * 16 / 9)
    assert attention(graph_of_pattern('Causal()', 9)).to_later == 0


@pytest.mark.parametrize('seed', range(2))
def test_the_directed_laplacian_is_that_of_networkx(seed):
    matrix = weighted(seed=seed)
    graph = nx.from_scipy_sparse_array(matrix, create_using=nx.DiGraph)  # from query to key
    for options, ours in (({'walk_type': 'random'}, directed_laplacian(matrix, weights=True)),
                          ({'walk_type': 'pagerank', 'alpha': 0.8},
                           directed_laplacian(matrix, weights=True, teleport=0.2))):
        np.testing.assert_allclose(ours.matrix.toarray(),
                                   nx.directed_laplacian_matrix(graph, **options), atol=1e-10)
    result = attention(matrix, teleport=0.2)
    rank = nx.pagerank(graph, alpha=0.8, tol=1e-14)
    np.testing.assert_allclose(result.stationary, list(rank.values()), atol=1e-10)
    assert result.directed_gap == pytest.approx(ours.smallest(2).values[1])


@pytest.mark.parametrize('graph, options, message', [
    (nx.DiGraph([(0, 1), (1, 2)]), {}, 'got 3 .*teleport=0.1'), (rectangle(), {}, 'keys'),
    (nx.empty_graph(0), {}, 'at least one'), (nx.path_graph(3), {'teleport': 2.}, 'teleport'),
    (graph_of_pattern('SlidingWindow(1)', 4097), {'teleport': 0.1}, 'got 4097')])
def test_what_has_no_directed_laplacian(graph, options, message):
    with pytest.raises(ValueError, match=message):
        directed_laplacian(graph, **options)


def test_stationary_probabilities_that_are_lost_are_refused(monkeypatch):
    monkeypatch.setattr('analysis.walk.MAX_DENSE', 3)
    steps = [(0, 1, 1.), (1, 0, 1.), (1, 2, 1e-13), (2, 3, 1.), (3, 2, 1.), (3, 0, 1.), (0, 0, 1.)]
    source, target, weight = zip(*steps)
    with pytest.raises(ValueError, match="'graph' must have stationary probabilities above"):
        directed_laplacian(sp.csr_array((weight, (source, target))), weights=True)


LENGTHS = 5, 9, 1
SOURCES = {
    'pattern': lambda: 'SlidingWindow(2)', 'block model': lambda: BlockModelSource(
        heads=2, head_channels=8, clusters=3), 'learned': lambda: LearnedMaskSource(2, 9),
    'soft': lambda: LearnedMaskSource(2, 9, mode='soft')}


@pytest.mark.slow
@pytest.mark.parametrize('name, options', [
    *((name, {}) for name in SOURCES), ('learned', {'share_source': True}),
    ('block model', {'positions': 'rotary'})])
def test_weights_of_a_model_give_its_outputs(name, options):
    torch.manual_seed(0)
    model = SequenceClassifier(Encoder(SOURCES[name](), num_tokens=10, max_length=9, channels=16,
                                       heads=2, num_layers=2, **options), num_classes=3).eval()
    ptr, tokens = torch.tensor([0, *LENGTHS]).cumsum(0), torch.randint(10, (sum(LENGTHS),))
    seen = []
    for layer in model.encoder.layers:
        layer.attention.register_forward_hook(
            lambda layer, given, out: seen.append((layer, given[0], out[0])))
    found = attention_of(model, tokens, ptr, torch.Generator().manual_seed(0))
    assert list(found) == [f'layer {layer}, head {head}' for layer in (0, 1) for head in (0, 1)]
    for number, (layer, x, out) in enumerate(seen):
        value = linear(x, layer.lin_value.weight, layer.lin_value.bias).view(-1, 2, 8)
        mixed = torch.stack([torch.from_numpy(
            sp.block_diag(found[f'layer {number}, head {head}']) @ value[:, head].detach().numpy())
            for head in (0, 1)], dim=1)
        torch.testing.assert_close(layer.lin_out(mixed.float().flatten(1)), out)
    for matrix in chain.from_iterable(found.values()):
        totals = matrix.sum(axis=1)
        np.testing.assert_allclose(totals[totals > 0], 1, atol=1e-6)
    assert [len(matrices) for matrices in found.values()] == [3] * 4
    assert all(len(layer.attention._forward_hooks) == 1 for layer in model.encoder.layers)


@pytest.mark.slow
def test_draws_samples_and_matrices_without_a_capacity():
    figure = draw({'samples': [attention(weighted(seed=seed)) for seed in range(3)],
                   'wide': [attention(rectangle(3, 5))], 'one': [attention(MATRICES['one'])],
                   'no edges': [attention(MATRICES['no edges'])]})
    ranks, values, plane = figure.axes
    assert [label.get_text() for label in ranks.get_yticklabels()] == [
        'samples', 'wide', 'one', 'no edges']
    assert len(values.get_lines()) == 5 and len(plane.get_lines()) == 2
    assert len(draw({str(n): [attention(weighted())] for n in range(12)}).axes) == 3
    *_, plane = draw({'no edges': [attention(MATRICES['no edges'])]}).axes
    assert not plane.has_data() and plane.get_xlim()[0] > 0
