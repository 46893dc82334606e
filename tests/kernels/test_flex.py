"""FlexAttention over every graph of the table: finite inputs, and on CPUs its definition."""

from __future__ import annotations

import copy

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.kernels import flex
from graphattn.layers import GraphAttention
from graphattn.patterns import Causal, SlidingWindow
from graphattn.sources import PatternSource
from tests.graphs import GRAPHS, random_graph
from tests.kernels.test_backends import assert_same, draw, in_double, train


@pytest.mark.parametrize('name', GRAPHS)
def test_equals_reference(name):
    graph = GRAPHS[name]()
    inputs = draw(graph)
    assert_same(train(graph, inputs, 'flex'), train(graph, inputs, 'reference'))


@pytest.mark.parametrize('edge_values', ['per_edge', 'per_edge_and_head'])
@pytest.mark.parametrize('name', ['no_edges', 'ragged_rectangles', 'graph_per_head'])
def test_values_on_edges_equal_reference(name, edge_values):
    graph = GRAPHS[name]()
    inputs = draw(graph, edge_values)
    assert_same(train(graph, inputs, 'flex'), train(graph, inputs, 'reference'))


@pytest.mark.parametrize('make', [
    lambda: SlidingWindow(3).build(400), lambda: Causal().build(300),
    lambda: BipartiteGraph.batch([random_graph(150, 90, 0.02), random_graph(20, 200, 0.1)])])
def test_graphs_of_several_tiles_equal_reference(make):
    """Empty ones, full ones and others; the last are not whole."""
    graph = make()
    inputs = draw(graph)
    assert_same(train(graph, inputs, 'flex'), train(graph, inputs, 'reference'))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_rounded_to_half_precision(dtype):
    graph = GRAPHS['ragged_batch']()
    inputs = draw(graph, 'per_edge', dtype=dtype)
    results = train(graph, inputs, 'flex')
    assert {result.dtype for result in results.values()} == {dtype}
    tolerance = 30 * torch.finfo(dtype).eps
    assert_same(results, train(graph, in_double(inputs), 'reference'), rtol=tolerance,
                atol=tolerance, check_dtype=False)


@pytest.mark.parametrize('options, match', [
    (dict(dropout_p=0.1), "'flex' has no dropout on weights .got 0.1.; 'auto' and"),
    (dict(return_attention_weights=True), "'backend' must be one that forms weights"),
    (dict(hops=2, teleport=0.1), "'backend' must be one that forms weights")])
def test_what_it_cannot_do_is_refused(options, match):
    graph = GRAPHS['square']()
    with pytest.raises(ValueError, match=match):
        edge_attention(graph=graph, **draw(graph), backend='flex', **options)


# Tiles ###############################################################################


def test_tiles_are_found_once():
    graph = GRAPHS['ragged_batch']()
    before = graph.nbytes
    mask = graph.block_mask
    assert graph.block_mask is mask and graph.nbytes > before
    assert graph.with_edge_prob(torch.rand(graph.num_edges)).block_mask is mask
    for other in (copy.deepcopy(graph), graph.transpose(), graph.with_self_loops()):
        assert other.block_mask is not mask


def test_tiles_that_were_found_in_inference_mode_train():
    graph = GRAPHS['ragged_batch']()
    inputs = draw(graph)
    with torch.inference_mode():
        edge_attention(graph=graph, **inputs, backend='flex')
    train(graph, inputs, 'flex')


# torch.compile #######################################################################


@pytest.fixture
def clean_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_layers_compile_around_it(clean_dynamo):
    layer = GraphAttention(8, 2, PatternSource(SlidingWindow(2)), backend='flex')
    x, ptr = torch.randn(12, 8), torch.tensor([0, 5, 12])
    out = torch.compile(layer, backend='eager')(x, ptr)
    torch.testing.assert_close(out, layer(x, ptr))


@pytest.mark.slow
@pytest.mark.parametrize('edge_values', ['plain', 'per_edge'])
def test_code_for_gpus_traces_for_graphs_of_any_size(edge_values, clean_dynamo, monkeypatch):
    """As a whole, and again only until the sizes that change are known; its kernels take a GPU."""
    traced = []

    def count(module, example_inputs):
        traced.append(module)
        return module.forward

    compiled = torch.compile(flex.by_tiles, fullgraph=True, backend=count)
    monkeypatch.setattr(flex, 'by_definition', compiled)
    with torch.no_grad():
        for graph in (random_graph(50, 60), random_graph(300, 200), GRAPHS['graph_per_head'](),
                      SlidingWindow(5).build(500), SlidingWindow(6).build(700)):
            inputs = draw(graph, edge_values, channels=16, value_channels=16)
            out = edge_attention(graph=graph, **inputs, backend='flex')
            torch.testing.assert_close(
                out, edge_attention(graph=graph, **inputs, backend='reference'))
    assert len(traced) <= 4
