"""Dense attention over every graph of the table: no gates, finite inputs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.ops.attention import sdpa
from graphattn.patterns import Full, SlidingWindow
from tests.graphs import GRAPHS
from tests.ops.test_backends import assert_same, draw


@pytest.fixture(params=[2**24, 30], ids=['one chunk', 'many chunks'])
def chunks(request, monkeypatch):
    monkeypatch.setattr(sdpa, 'PAIRS_PER_CHUNK', request.param)


@pytest.mark.parametrize('edge_values', ['plain', 'bias alone', 'per_edge_and_head'])
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


class CountNumbers(TorchDispatchMode):
    """Count the values that operators make."""

    made = 0

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.made += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


@pytest.mark.parametrize('pattern', [Full(), SlidingWindow(3)])
def test_sequences_of_many_lengths_take_time_in_proportion(pattern):
    def made_per_token(num_sequences):
        graph = BipartiteGraph.batch([pattern.build(4 + number % 2)
                                      for number in range(num_sequences)])
        inputs = torch.randn(3, graph.num_queries, 2, 4, requires_grad=True)
        bias = torch.randn(graph.num_edges, requires_grad=True)
        with CountNumbers() as numbers:
            edge_attention(*inputs, graph, edge_bias=bias, backend='sdpa').sum().backward()
        return numbers.made / graph.num_queries

    assert made_per_token(200) == pytest.approx(made_per_token(20), rel=0.1)


def test_refuses_what_it_cannot_do():
    graph = GRAPHS['square']()
    with pytest.raises(ValueError, match="'sdpa'.*gates"):
        edge_attention(graph=graph, **draw(graph, 'per_edge'), backend='sdpa')
    with pytest.raises(ValueError, match="'sdpa'.*weights"):
        edge_attention(graph=graph, **draw(graph), backend='sdpa', return_attention_weights=True)
