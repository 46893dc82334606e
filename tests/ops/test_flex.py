"""FlexAttention over every graph of the table: finite inputs, and on CPUs its definition."""

from __future__ import annotations

import copy

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.ops.attention import flex
from graphattn.patterns import Causal, SlidingWindow
from tests.graphs import GRAPHS, random_graph
from tests.ops.test_backends import assert_same, draw, draw_with, in_double, train


@pytest.mark.parametrize('name', GRAPHS)
def test_equals_reference(name):
    graph = GRAPHS[name]()
    inputs = draw(graph)
    assert_same(train(graph, inputs, 'flex'), train(graph, inputs, 'reference'))


@pytest.mark.slow
@pytest.mark.parametrize('edge_values', ['per_edge', 'per_edge_and_head'])
@pytest.mark.parametrize('name', ['no_edges', 'ragged_rectangles', 'graph_per_head'])
def test_values_on_edges_equal_reference(name, edge_values):
    graph = GRAPHS[name]()
    inputs = draw(graph, edge_values)
    assert_same(train(graph, inputs, 'flex'), train(graph, inputs, 'reference'))


@pytest.mark.slow
@pytest.mark.parametrize('make', [
    lambda: SlidingWindow(3).build(400), lambda: Causal().build(300),
    lambda: BipartiteGraph.batch([random_graph(150, 90, 0.02), random_graph(20, 200, 0.1)])])
def test_graphs_of_several_tiles_equal_reference(make):
    """Empty ones, full ones and others; the last are not whole."""
    graph = make()
    inputs = draw(graph)
    assert_same(train(graph, inputs, 'flex'), train(graph, inputs, 'reference'))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_rounded_to_half_precision(dtype):
    graph = GRAPHS['ragged_batch']()
    inputs = draw(graph, 'per_edge', dtype=dtype)
    results = train(graph, inputs, 'flex')
    assert {result.dtype for result in results.values()} == {dtype}
    tolerance = 30 * torch.finfo(dtype).eps
    assert_same(results, train(graph, in_double(inputs), 'reference'), rtol=tolerance,
                atol=tolerance, check_dtype=False)


@pytest.mark.slow
def test_a_large_bias_that_all_edges_share_changes_nothing():
    graph = GRAPHS['square']()
    inputs = draw(graph, dtype=torch.float32)
    bias = torch.full((graph.num_edges,), 1e6)
    assert_same(train(graph, inputs, 'flex', edge_bias=bias), train(graph, inputs, 'reference'),
                rtol=1e-5, atol=1e-5)


# Tiles ###############################################################################


def test_tiles_are_found_once():
    graph = GRAPHS['ragged_batch']()
    before = graph.nbytes
    mask = graph.block_mask
    assert graph.block_mask is mask and graph.nbytes > before
    assert graph.with_edge_prob(torch.rand(graph.num_edges)).block_mask is mask
    for other in (copy.deepcopy(graph), graph.transpose(), graph.with_self_loops()):
        assert other.block_mask is not mask


# torch.compile #######################################################################


@pytest.mark.slow
def test_code_for_gpus_is_traced_as_a_whole_for_graphs_of_any_size(monkeypatch):
    """Its kernels alone take a GPU."""
    torch._dynamo.reset()
    traced = []

    def count(module, example_inputs):
        traced.append(module)
        return module.forward

    monkeypatch.setattr(flex, 'by_definition',
                        torch.compile(flex.by_tiles, fullgraph=True, backend=count))
    with torch.no_grad():
        for graph in (random_graph(50, 60), random_graph(300, 200), random_graph(200, 400)):
            inputs = draw(graph, 'per_edge', channels=16, value_channels=16)
            out = edge_attention(graph=graph, **inputs, backend='flex')
            assert_same({'out': out}, {'out': edge_attention(graph=graph, **inputs,
                                                             backend='reference')})
    assert len(traced) == 2


@pytest.mark.slow
@pytest.mark.parametrize('terms', ['sinks', 'no sink and both terms'])
def test_code_for_gpus_has_softcaps_and_sinks(terms, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(flex, 'by_definition', torch.compile(
        flex.by_tiles, fullgraph=True, backend=lambda module, example_inputs: module.forward))
    graph = GRAPHS['idle_nodes']()
    inputs, options = draw_with(graph, terms, num_kv_heads=1)
    with torch.no_grad():
        assert_same(*({'out': edge_attention(graph=graph, **inputs, **options, backend=backend)}
                      for backend in ('flex', 'reference')))
