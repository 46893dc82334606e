"""Dot products on edges in Triton's kernels."""

import pytest
import torch

from graphattn import ops
from tests.graphs import GRAPHS, random_graph
from tests.ops.triton.interpreter import interpreted

pytest.importorskip('triton', reason="backend 'triton' needs triton")

# Of numpy, in which the interpreter computes what is masked afterwards.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning')]


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


@pytest.mark.parametrize('name', ['ragged_rectangles', 'idle_nodes', 'no_edges', 'no_keys'])
def test_equals_the_definition(name):
    graph = GRAPHS[name]()
    assert_same(graph, *factors(graph, 5, heads=2))


@pytest.mark.parametrize('channels', [1, 70])
def test_takes_some_channels_at_a_time(channels):
    graph = random_graph(12, 14)
    assert_same(graph, *factors(graph, channels))


def test_non_finite_values_reach_only_their_edges():
    graph = GRAPHS['hub']()
    query, key = factors(graph, 4)
    query.data[5, 0, 1], key.data[7, 0, 2] = torch.nan, torch.inf
    assert_same(graph, query, key)


@pytest.mark.parametrize('poison', [torch.nan, torch.inf])
def test_edges_without_a_gradient_add_nothing(poison):
    """It does so as on CPUs, whatever it leads to."""
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
