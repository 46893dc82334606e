"""Dot products on edges by tiles: on both sides of the density at which they take over."""

from functools import partial

import pytest
import torch

from graphattn import BipartiteGraph, ops
from tests.graphs import GRAPHS, random_graph
from tests.ops.triton.interpreter import interpreted

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from graphattn.ops.edge_dot import triton as edge_dot
from graphattn.ops.triton import tiles  # noqa: E402

# Of numpy, in which the interpreter computes what is masked afterwards.
pytestmark = pytest.mark.filterwarnings('ignore::RuntimeWarning')


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(tiles, 'FASTER_ABOVE', {1: 0.})


def factors(graph, channels, heads=1):
    return [torch.randn(size, heads, channels, requires_grad=True)
            for size in (graph.num_queries, graph.num_keys)]


def dot_and_grads(backend, graph, query, key):
    dot = ops.load(backend).edge_dot(query, key, graph)
    weight = torch.linspace(-1, 1, dot.numel()).view_as(dot)
    return dot, *torch.autograd.grad((dot * weight).sum(), (query, key))


def assert_same(graph, query, key):
    expected = dot_and_grads('gather', graph, query, key)
    with interpreted():
        actual = dot_and_grads('triton', graph, query, key)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ragged_rectangles', 'idle_nodes', 'no_edges', 'no_keys'])
def test_equals_the_definition(name, always):
    graph = GRAPHS[name]()
    assert_same(graph, *factors(graph, 5, heads=2))


@pytest.mark.slow
@pytest.mark.parametrize('channels', [1, 70])
def test_takes_some_channels_at_a_time(channels, always):
    graph = random_graph(12, 14)
    assert_same(graph, *factors(graph, channels))


@pytest.mark.slow
def test_passes_over_tiles_without_edges(always):
    mask = torch.rand(66, 130) < 0.7
    mask[:, 35:100] = mask[3] = mask[64:, :40] = False
    graph = BipartiteGraph.from_mask(mask)
    assert_same(graph, *factors(graph, 3))


@pytest.mark.slow
def test_non_finite_values_reach_only_their_edges(always):
    graph = GRAPHS['hub']()
    query, key = factors(graph, 4)
    query.data[5, 0, 1], key.data[7, 0, 2] = torch.nan, torch.inf
    assert_same(graph, query, key)


@pytest.mark.slow
@pytest.mark.parametrize('poison', [torch.nan, torch.inf])
@pytest.mark.parametrize('faster_above', [0., 1.], ids=['tiles', 'rows'])
def test_edges_without_a_gradient_add_nothing(faster_above, poison, monkeypatch):
    """It does so as on CPUs, whatever it leads to."""
    monkeypatch.setattr(tiles, 'FASTER_ABOVE', {1: faster_above})
    graph = random_graph(12, 14)
    query, key = factors(graph, 4)
    query.data[5, 0, 1] = key.data[7, 0, 2] = poison
    grad_dot = torch.randn(graph.num_edges, 1)
    grad_dot[(graph.query == 5) | (graph.key == 7)] = 0.

    def grads(backend):
        return torch.autograd.grad(ops.load(backend).edge_dot(query, key, graph), (query, key),
                                   grad_dot)

    with interpreted():
        actual = grads('triton')
    assert all(grad.isfinite().all() and grad.any() for grad in actual)
    torch.testing.assert_close(actual, grads('numba'), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('density, expected', [(0.3, ['dot_tiles', 'sum_tiles', 'sum_tiles']),
                                               (0.02, [])])
def test_the_density_of_segments_decides(density, expected, monkeypatch):
    """The density is that of the pairs inside segments, a third of all."""
    taken = []

    def record(function, *arguments):
        taken.append(function.__name__)
        return function(*arguments)

    for function in (tiles.dot_tiles, tiles.sum_tiles):
        monkeypatch.setattr(edge_dot, function.__name__, partial(record, function))
    graph = BipartiteGraph.batch([random_graph(9, 9, density) for _ in range(3)])
    assert_same(graph, *factors(graph, 128))
    assert taken == expected


def test_other_dtypes_and_more_columns_go_by_rows(always):
    query = torch.ones(3, 1, 4)
    assert tiles.is_faster(query, query, 9, 1)
    assert not tiles.is_faster(query.double(), query, 9, 1)
    assert not tiles.is_faster(query.half(), query, 9, 1)
    assert not tiles.is_faster(query, query[:1].expand(tiles.MAX_COLUMNS + 1, 1, 4), 9, 1)


@pytest.mark.parametrize('flag, precision', [('highest', 'tf32x3'), ('high', 'tf32')])
def test_products_round_as_the_flag_of_torch_says(flag, precision, always, monkeypatch):
    seen = []
    monkeypatch.setattr(tiles, 'launch',
                        lambda *_, PRECISION, **constants: seen.append(PRECISION))
    graph, before = random_graph(4, 4), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(flag)
    try:
        with interpreted():
            ops.load('triton').edge_dot(*factors(graph, 4), graph)
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == [precision]
