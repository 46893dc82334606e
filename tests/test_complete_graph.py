"""Graphs of all pairs whose keys are not listed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.graphs.complete import CompleteGraph
from graphattn.layers import GraphAttention
from graphattn.patterns import Full
from graphattn.sources import PatternSource, pattern_source

PTR = torch.tensor([0, 4, 4, 9])


@pytest.fixture(autouse=True)
def every_graph_is_large(monkeypatch):
    monkeypatch.setattr(pattern_source, '_exceeds_cache', lambda lengths, heads: True)


def plain(heads: int = 1) -> BipartiteGraph:
    graphs = [Full().build(length) for length in (4, 0, 5)]
    return BipartiteGraph.batch([BipartiteGraph.batch(graphs)] * heads)


def is_listed(graph: BipartiteGraph) -> bool:
    return '_key' in vars(graph)


@pytest.mark.parametrize('heads', [1, 2])
def test_it_equals_the_graph_of_all_pairs(heads):
    source = PatternSource(Full() if heads == 1 else [Full()] * heads)
    tokens = torch.randn(9, 2, 4)
    graph, expected = source(tokens, tokens, PTR), plain(heads)
    assert isinstance(graph, CompleteGraph)
    for read in ('num_queries', 'num_keys', 'num_edges', 'num_pairs', 'num_segments', 'is_square',
                 'device', 'is_reordered', 'edge_prob'):
        assert getattr(graph, read) == getattr(expected, read), read
    assert graph.density() == 1. and torch.equal(graph.in_degree(), expected.in_degree())
    graph.check_unchanged()
    assert graph.nbytes < expected.nbytes and not is_listed(graph)
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
