"""Dense attention over every graph of the table: no gates, finite inputs."""

import pytest
import torch

from graphattn.functional import edge_attention
from graphattn.kernels import sdpa
from tests.graphs import GRAPHS
from tests.kernels.test_backends import EDGE_VALUES, assert_same, draw


@pytest.fixture(params=[2**24, 30], ids=['one chunk', 'many chunks'])
def chunks(request, monkeypatch):
    monkeypatch.setattr(sdpa, 'PAIRS_PER_CHUNK', request.param)


@pytest.mark.parametrize('edge_values', EDGE_VALUES)
@pytest.mark.parametrize('name', GRAPHS)
def test_equals_reference(name, edge_values, chunks):
    graph = GRAPHS[name]()
    inputs = draw(graph, edge_values)
    inputs.pop('edge_gate', None)
    results = []
    for backend in ('sdpa', 'reference'):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
        out = edge_attention(graph=graph, **leaves, backend=backend)
        grads = torch.autograd.grad(out.sin().sum(), list(leaves.values()))
        results.append({'out': out, **dict(zip(leaves, grads))})
    assert_same(*results)


@pytest.mark.parametrize('name', ['square', 'full'])
def test_gradients_that_keep_their_graph_are_those_that_do_not(name):
    inputs = list(torch.randn(3, GRAPHS[name]().num_queries, 2, 4, requires_grad=True))
    out = edge_attention(*inputs, GRAPHS[name](), backend='sdpa').sin().sum()
    for grads in zip(torch.autograd.grad(out, inputs, create_graph=True),
                     torch.autograd.grad(out, inputs)):
        assert torch.equal(*grads)


def test_refuses_what_it_cannot_do():
    graph = GRAPHS['square']()
    with pytest.raises(ValueError, match="'sdpa' has no gates"):
        edge_attention(graph=graph, **draw(graph, 'per_edge'), backend='sdpa')
    with pytest.raises(ValueError, match="'backend' must be one that forms weights"):
        edge_attention(graph=graph, **draw(graph), backend='sdpa', return_attention_weights=True)
