"""Meshes are what they are said to be, and anemoi's kernel is called as it wants to be."""

import pytest
import torch

from experiments.benchmarks import meshes
from graphattn.functional import edge_feature_attention
from tests.graphs import random_graph


def test_what_is_not_installed_is_left_out_and_said(monkeypatch, capsys):
    monkeypatch.setattr(meshes, 'find_spec', lambda name: None)
    assert not meshes.is_installed.__wrapped__()
    assert 'pip install --no-deps anemoi-models' in capsys.readouterr().out


@pytest.mark.slow
def test_anemoi_computes_what_the_definition_does_of_features_in_full_width():
    pytest.importorskip('triton', reason="backend 'triton' needs triton")
    pytest.importorskip('anemoi.models', reason='the peer is not installed')
    from tests.ops.triton.interpreter import interpreted

    graph, heads, channels = random_graph(5, 7, 0.5), 2, 4
    nodes = [torch.randn(size, heads, channels, requires_grad=True) for size in (5, 7, 7)]
    features = [torch.randn(shape, requires_grad=True) for shape in
                ((graph.num_edges, 3), (heads, channels, 3))]
    with interpreted():
        actual = meshes.anemoi_attention(graph)(*nodes, meshes.project(*features))
        actual = [actual, *torch.autograd.grad(actual.sin().sum(), (*nodes, *features))]
    expected = edge_feature_attention(*nodes, graph, *features, backend='reference')
    expected = [expected, *torch.autograd.grad(expected.sin().sum(), (*nodes, *features))]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
