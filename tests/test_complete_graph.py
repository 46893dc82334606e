"""Graphs of all pairs whose keys are not listed."""

import copy
import pickle

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.complete import CompleteGraph
from graphattn.layers import GraphAttention
from graphattn.patterns import Full
from graphattn.sources import PatternSource, pattern_source

PTR = torch.tensor([0, 4, 4, 9])


@pytest.fixture(autouse=True, params=[True, False], ids=['large', 'kept'])
def is_large(request, monkeypatch):
    GRAPHS.clear()
    monkeypatch.setattr(pattern_source, '_exceeds_cache', lambda lengths, heads: request.param)
    return request.param


def plain(heads: int = 1) -> BipartiteGraph:
    graphs = [Full().build(length) for length in (4, 0, 5)]
    return BipartiteGraph.batch([BipartiteGraph.batch(graphs)] * heads)


def is_listed(graph: BipartiteGraph) -> bool:
    return '_key' in vars(graph)


@pytest.mark.parametrize('heads', [1, 2])
def test_it_equals_the_graph_of_all_pairs(heads, is_large):
    source = PatternSource(Full() if heads == 1 else [Full()] * heads)
    tokens = torch.randn(9, 2, 4)
    graph, expected = source(tokens, tokens, PTR), plain(heads)
    assert isinstance(graph, CompleteGraph)
    for read in ('num_queries', 'num_keys', 'num_edges', 'num_pairs', 'num_segments', 'is_square',
                 'device', 'is_reordered', 'edge_prob'):
        assert getattr(graph, read) == getattr(expected, read), read
    assert graph.density() == 1. and torch.equal(graph.in_degree(), expected.in_degree())
    graph.check_unchanged()
    assert not is_listed(graph) and graph.is_listed is not is_large
    assert graph.nbytes < expected.nbytes
    assert (source(tokens, tokens, PTR.clone()) is graph) is not is_large
    for copied in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), graph.to('cpu')):
        assert copied == expected
    assert graph == expected and graph.transpose() == expected.transpose()
    assert torch.equal(graph.edge_index, expected.edge_index)


@pytest.mark.parametrize('options', [{}, dict(dropout=.5), dict(hops=3, teleport=.1)], ids=str)
def test_layers_give_the_numbers_of_listed_edges(options):
    x, layer = torch.randn(9, 8), GraphAttention(8, 2, 'Full()', **options).eval()
    out, graph = layer(x, PTR, return_graph=True)
    assert isinstance(graph, CompleteGraph)
    torch.testing.assert_close(out, layer(x, PTR, graph=plain()))
    torch.testing.assert_close(torch.compile(layer, backend='eager')(x, PTR), out)


def test_a_kept_graph_does_not_change_with_the_pointer(is_large):
    source, tokens, ptr = PatternSource('Full'), torch.randn(9, 2, 4), PTR.clone()
    graph = source(tokens, tokens, ptr)
    ptr[1] = 3
    assert graph == plain()
    assert source(tokens, tokens, ptr).segments.shapes == [(3, 3), (1, 1), (5, 5)]


def test_dense_attention_lists_no_edges():
    tokens = torch.randn(9, 2, 4)
    graph = PatternSource('Full')(tokens, tokens, PTR)
    edge_attention(tokens, tokens, tokens, graph, backend='sdpa')
    assert not is_listed(graph)


@pytest.mark.parametrize('length', [5, 300])
def test_changed_edges_are_refused(length):
    ptr = torch.tensor([0, length])
    tokens = torch.randn(length, 2, 4)
    graph = PatternSource('Full')(tokens, tokens, ptr)
    _, key = graph.csr
    graph.check_unchanged()
    key[:1] = 3
    with pytest.raises(ValueError, match="'graph' must not be modified"):
        graph.check_unchanged()
