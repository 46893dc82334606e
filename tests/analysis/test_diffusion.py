"""Diffusion: Proposition 5 and where it ends, distances to the resolvent, receptive fields."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch

from analysis.diffusion import (
    diffusion,
    heat_response,
    operator,
    ppr_response,
    receptive_field,
    resolvent,
)
from analysis.drawings import draw_diffusion as draw
from analysis.walk import square_graph, uniform_attention
from graphattn import patterns
from graphattn.patterns import parse

PAIR = torch.arange(8) // 2
SYMMETRIC = {
    'complete': nx.complete_graph(7), 'even cycle': nx.cycle_graph(8), 'star': nx.star_graph(6),
    'path': nx.path_graph(9), 'hypercube': nx.hypercube_graph(4),
    'regular': nx.random_regular_graph(4, 30, seed=0),
    'disconnected': nx.disjoint_union(nx.complete_graph(3), nx.cycle_graph(4)),
    'window': patterns.SlidingWindow(2).build(24),
    'longformer': parse('SlidingWindow(2) | GlobalTokens(1)').build(24),
}
DIRECTED = {
    'cycle': nx.cycle_graph(8, create_using=nx.DiGraph),
    'cycle of pairs': PAIR == (PAIR[:, None] + 1) % 4,
    'random keys': parse('SlidingWindow(1) | RandomKeys(2)').build(40, seed=0),
    'diffuser': parse('diffuser(window=4, num_global=2, num_random=2)').build(40, seed=0),
    'causal': parse('(SlidingWindow(3) | GlobalTokens(1)) & Causal()').build(40),
    'queries without keys': nx.DiGraph([(0, 1), (1, 2), (2, 1), (3, 2), (1, 4), (3, 5)]),
}
GRAPHS = SYMMETRIC | DIRECTED


def weights(teleport, hops):
    """Return the weights of A^0, A^1, ... in the operator after the hops."""
    series = teleport * (1 - teleport) ** np.arange(hops)
    return [*series, (1 - teleport) ** hops]


def polynomial(attention, coefficients):
    return sum(coefficient * np.linalg.matrix_power(attention, power)
               for power, coefficient in enumerate(coefficients))


@pytest.mark.parametrize('hops', [0, 1, 5])
@pytest.mark.parametrize('name', GRAPHS)
def test_recursion_is_the_series_with_its_last_weight(name, hops):
    attention = uniform_attention(GRAPHS[name])
    expected = polynomial(attention.toarray(), weights(0.1, hops))
    assert np.allclose(operator(attention, hops, 0.1), expected, atol=1e-14)


@pytest.mark.parametrize('name', ['window', 'random keys', 'queries without keys'])
def test_operator_is_what_the_library_diffuses_by(name):
    from torch_geometric.nn import APPNP

    graph = square_graph(GRAPHS[name])
    attention = uniform_attention(graph)
    weight = torch.from_numpy(attention.data)
    value = torch.eye(graph.num_keys, dtype=torch.float64)
    expected = APPNP(5, 0.2, normalize=False)(value, torch.stack([graph.key, graph.query]), weight)
    assert np.allclose(operator(attention, 5, 0.2), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize('teleport', [0.05, 1.])
@pytest.mark.parametrize('name', GRAPHS)
def test_distance_to_the_resolvent(name, teleport):
    result = diffusion(GRAPHS[name], hops=6, teleport=teleport)
    attention = uniform_attention(GRAPHS[name])
    limit = resolvent(attention, teleport)
    assert np.allclose(teleport * np.eye(len(limit)) + (1 - teleport) * limit @ attention, limit)
    rests = [(1 - teleport) ** hop * np.linalg.matrix_power(attention.toarray(), hop)
             @ (np.eye(len(limit)) - limit) for hop in range(7)]
    assert np.allclose(result.distance, [np.linalg.norm(rest, np.inf) for rest in rests])
    assert np.allclose(result.distance_frobenius, [np.linalg.norm(rest) for rest in rests])
    assert (result.distance <= result.distance_bound + 1e-12).all()
    assert result.distance_at_last == result.distance[-1]


def test_bound_on_the_distance_is_nearly_reached():
    """Nothing ever mixes on a long directed cycle, which moves all mass."""
    result = diffusion(nx.cycle_graph(200, create_using=nx.DiGraph), hops=8)
    assert np.allclose(result.distance, result.distance_bound, rtol=1e-8)


@pytest.mark.parametrize('name', SYMMETRIC)
def test_proposition_5_on_symmetric_graphs(name):
    """Same eigenvectors; eigenvalues by Eq. S.10, real and in order."""
    teleport = 0.1
    attention = uniform_attention(SYMMETRIC[name])
    degree = np.diff(attention.indptr)
    root = np.sqrt(degree)
    eigenvalue, vector = np.linalg.eigh(root[:, None] * attention.toarray() / root)
    vector = vector / root[:, None]
    assert np.allclose(attention @ vector, vector * eigenvalue)
    assert (np.abs(eigenvalue) <= 1 + 1e-12).all()

    diffused = resolvent(attention, teleport)
    assert np.allclose(diffused @ vector, vector * ppr_response(eigenvalue, teleport))
    laplacian = 1 - eigenvalue
    after = (1 - teleport) * laplacian / (teleport + (1 - teleport) * laplacian)
    assert np.allclose(1 - ppr_response(eigenvalue, teleport), after)
    assert (np.diff(after[np.argsort(laplacian)]) >= -1e-12).all()
    for hops in (1, 2, 5):
        expected = vector * ppr_response(eigenvalue, teleport, hops)
        assert np.allclose(operator(attention, hops, teleport) @ vector, expected)

    heat = scipy.linalg.expm(-3 * (np.eye(len(degree)) - attention.toarray()))
    assert np.allclose(heat @ vector, vector * heat_response(eigenvalue, 3.))


@pytest.mark.parametrize('name', GRAPHS)
def test_eigenvalues_after_the_hops_are_the_predicted_ones(name):
    result = diffusion(GRAPHS[name], hops=5)
    assert result.is_symmetric == (name in SYMMETRIC)
    assert result.prediction_error < 1e-7  # a defective eigenvalue is found no better
    if result.is_symmetric:
        assert result.prediction_error < 1e-12 and result.imaginary == 0
    trace = operator(uniform_attention(GRAPHS[name]), 5, 0.1).trace()
    assert result.eigenvalue_after.sum() == pytest.approx(trace)
    assert result.response.sum() == pytest.approx(trace)
    assert np.array_equal(result.response, ppr_response(result.eigenvalue, 0.1, 5))


def test_counter_example_on_a_directed_graph():
    """Complex eigenvalues, and five hops that are no low-pass filter: at a = 0.1, lambda = 2
    becomes 1.51 where the limit is 0.947."""
    result = diffusion(DIRECTED['cycle of pairs'], hops=5)
    assert not result.is_symmetric and result.imaginary == pytest.approx(1)
    laplacian = 1 - result.eigenvalue
    expected = np.array([0, 1 - 1j, 1 + 1j, 2, 1, 1, 1, 1])
    assert np.allclose(np.sort_complex(laplacian), np.sort_complex(expected), atol=1e-7)

    at_two = np.abs(laplacian - 2).argmin()
    after = 1 - result.response
    assert after[at_two] == pytest.approx(1.5068, abs=5e-5)
    limit = 1 - ppr_response(result.eigenvalue, 0.1)
    assert limit[at_two] == pytest.approx(1.8 / 1.9) and round(1.8 / 1.9, 3) == 0.947


@pytest.mark.parametrize('name', GRAPHS)
def test_receptive_field_is_that_of_boolean_powers(name):
    mask = square_graph(GRAPHS[name]).to_mask().numpy()
    step = (mask | np.eye(len(mask), dtype=bool)).astype(float)
    expected = [(np.linalg.matrix_power(step, hop) > 0).sum(axis=1) for hop in range(7)]
    assert np.array_equal(receptive_field(GRAPHS[name], hops=6), expected)


def test_causal_hops_stay_causal_and_global_tokens_leak():
    causal = parse('(SlidingWindow(2) | GlobalTokens(1)) & Causal()').build(30)
    assert (receptive_field(causal, hops=8) <= np.arange(1, 31)).all()
    assert diffusion(causal, hops=30).hops_to_reach_all is None
    one_edge_back = parse('(SlidingWindow(2) & Causal()) | GlobalTokens(1)').build(30)
    field = receptive_field(one_edge_back, hops=2)
    assert field[1, 1] == 2 and (field[2] == 30).all()


@pytest.mark.slow
def test_large_graph_has_receptive_fields_alone():
    graph = patterns.SlidingWindow(4).build(20_000)
    with pytest.raises(ValueError, match=r"at most 2048 tokens .*\(got 20000\).*spectra=False"):
        diffusion(graph)
    result = diffusion(graph, hops=3, spectra=False)
    assert result.queries == 512 and result.field_max.tolist() == [1, 9, 17, 25]
    assert result.distance.size == 0 and result.distance_at_last is None
    assert len(draw({'window': [result]}).axes) == 2


@pytest.mark.parametrize('options, error', [
    ({'hops': 0}, ValueError), ({'hops': 2.}, TypeError), ({'teleport': 0.}, ValueError),
    ({'time': -1.}, ValueError), ({'time': math.inf}, ValueError), ({'time': '1'}, TypeError),
    ({'queries': 0}, ValueError), ({'queries_seed': -1}, ValueError)])
def test_bad_options(options, error):
    with pytest.raises(error, match=f"'{[*options][0]}' must be"):
        diffusion(GRAPHS['window'], **options)


def test_matrices_it_cannot_invert(monkeypatch):
    with pytest.raises(TypeError, match="'attention' must be a square scipy sparse array"):
        resolvent(np.eye(3), 0.1)
    monkeypatch.setattr('analysis.diffusion.MAX_DENSE', 20)
    with pytest.raises(ValueError, match=r"'attention' must have at most 20 tokens .*\(got 24\)"):
        operator(uniform_attention(GRAPHS['window']), 2, 0.1)
