"""Dot products on edges in Triton's kernels."""

from contextlib import contextmanager

import pytest
import torch

from graphattn import BipartiteGraph, ops
from graphattn.functional import choose
from graphattn.layers import GraphAttention
from graphattn.sources import BlockModelSource
from tests.graphs import GRAPHS, random_graph
from tests.ops.triton.interpreter import interpreted

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from graphattn.ops.attention import triton_tiles as attention_tiles  # noqa: E402
from graphattn.ops.triton import tiles  # noqa: E402
from graphattn.ops.weights import triton_tiles  # noqa: E402

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


# Gradients along tiles that attention has planned #######################################


@contextmanager
def planned(graph, heads, edges_of_a_tile):
    """Inside, attention has planned tiles that have so many edges, by query and by key."""
    with interpreted():
        orders = (graph.csr, graph.num_keys), (graph.csc[:2], graph.num_queries)
        plans = [tiles.plan(*rows, num_columns, heads, edges_of_a_tile)
                 for rows, num_columns in orders]  # kept as long as the graph
        assert all(plan is not None and plan.have_rows for plan in plans)
        yield plans


def counted(monkeypatch):
    """The blocks of rows that kernels over tiles computed, for each call."""
    found, sum_tiles = [], triton_tiles.sum_tiles

    def note(weight, x, plan, *others):
        found.append(int((plan.num_tiles > 0).sum()))
        sum_tiles(weight, x, plan, *others)

    monkeypatch.setattr(triton_tiles, 'sum_tiles', note)
    return found


def half_dense():
    """Blocks of 64 queries with many edges for each tile, and with few; by key, too."""
    mask = torch.rand(200, 150) < .02
    mask[:64] |= torch.rand(64, 150) < .6
    mask[:, 70:140] |= torch.rand(200, 70) < .5
    mask[64:128, :64] = True  # a full tile
    return BipartiteGraph.from_mask(mask)


@pytest.mark.parametrize('graph, channels, heads, edges_of_a_tile, blocks', [
    (half_dense, 16, 1, 1, [4, 3]), (half_dense, 5, 2, 800, [2, 2]),
    (GRAPHS['ragged_rectangles'], 33, 1, 1, None), (lambda: random_graph(70, 66, 0.3), 128, 1, 1,
                                                    [2, 2])],
    ids=['all blocks', 'some blocks', 'ragged', 'wide'])
def test_gradients_along_tiles(graph, channels, heads, edges_of_a_tile, blocks, monkeypatch):
    graph, found = graph(), counted(monkeypatch)
    query, key = factors(graph, channels, heads)
    expected = dot_and_grads('gather', graph, query, key)
    with planned(graph, heads, edges_of_a_tile):
        actual = dot_and_grads('triton', graph, query, key)
    assert len(found) == 2 and (blocks is None or found == blocks)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


def test_blocks_of_many_tiles_are_cut(monkeypatch):
    monkeypatch.setattr(tiles, '_SHARE_OF_A_PART', 16)
    monkeypatch.setattr(tiles, '_TILES_OF_A_PART', 1)
    graph = random_graph(70, 300, .3)
    query, key = factors(graph, 8)
    expected = dot_and_grads('gather', graph, query, key)
    with planned(graph, 1, 1) as (by_query, _):
        assert by_query.tasks.more[1].max() > 0
        actual = dot_and_grads('triton', graph, query, key)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize('poison', [torch.nan, torch.inf])
def test_non_finite_values_reach_only_their_edges_along_tiles(poison):
    """And none along edges without a gradient."""
    graph = random_graph(70, 66, .3)
    query, key = factors(graph, 4)
    query.data[5, 0, 1] = key.data[7, 0, 2] = poison
    grad_dot = torch.randn(graph.num_edges, 1)
    grad_dot[(graph.query == 5) & (graph.key % 2 == 0)] = 0.

    def grads(backend):
        return torch.autograd.grad(ops.load(backend).edge_dot(query, key, graph), (query, key),
                                   grad_dot)

    with planned(graph, 1, 1):
        actual = grads('triton')
    torch.testing.assert_close(actual, grads('numba'), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_heads_of_another_number_and_float64_go_by_rows(monkeypatch):
    graph, found = random_graph(70, 66, .3), counted(monkeypatch)
    with planned(graph, 1, 1):
        dot_and_grads('triton', graph, *factors(graph, 4, heads=2))
        dot_and_grads('triton', graph, *[x.detach().double().requires_grad_()
                                         for x in factors(graph, 4)])
    assert not found


def test_a_block_model_takes_the_tiles_of_its_attention(monkeypatch):
    monkeypatch.setattr(attention_tiles, 'EDGES_OF_A_TILE',
                        dict.fromkeys(attention_tiles.EDGES_OF_A_TILE, 1))
    source = BlockModelSource(heads=2, head_channels=16, clusters=8)
    layer = GraphAttention(32, 2, source).to(torch.bfloat16)
    x, found, grads = torch.randn(100, 32, dtype=torch.bfloat16), counted(monkeypatch), []

    def take_step():
        torch.manual_seed(0)
        layer.zero_grad()
        layer(x, torch.tensor([0, 40, 100])).square().sum().backward()
        grads.append([parameter.grad for parameter in source.parameters()])

    with interpreted():
        monkeypatch.setitem(choose.FASTEST_SPARSE, 'cpu', ops.load('triton'))
        take_step()
        assert found == [4, 4]  # of 64 rows, in two heads
        monkeypatch.setattr(triton_tiles, 'planned', lambda rows, x: None)
        take_step()
    assert len(found) == 2
    torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-3)
