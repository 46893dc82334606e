"""Contract of the layers with the interface of PyG: hooks, subclasses, and PyG's own tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, TransformerConv

from graphattn import BipartiteGraph
from graphattn.layers import EdgeAttention, GraphTransformerConv
from tests.graphs import GRAPHS

GRAPH = GRAPHS['square']()
QKV = torch.randn(3, 12, 2, 4, generator=torch.Generator().manual_seed(0))
STEPS = ('propagate', 'edge_update', 'message', 'aggregate', 'message_and_aggregate')


def attend(layer: EdgeAttention, along: BipartiteGraph | Tensor = GRAPH) -> Tensor:
    return layer(*QKV, along)


def compiled(layer: EdgeAttention, along: BipartiteGraph | Tensor = GRAPH) -> Tensor:
    torch._dynamo.reset()  # hooks count if they are registered before, as with PyG's layers
    return torch.compile(lambda: attend(layer, along), backend='eager')()


RUNS = [attend, pytest.param(compiled, marks=pytest.mark.slow)]


def doubled(layer: type[MessagePassing], step: str) -> type[MessagePassing]:
    """A subclass one of whose steps returns twice the value."""
    original = getattr(layer, step)

    @wraps(original)  # PyG reads the names of arguments from the signature
    def twice(*args, **kwargs):
        return 2 * original(*args, **kwargs)

    return type(f'Doubled{step}', (layer,), {step: twice})


# The steps of message passing ########################################################


@pytest.mark.parametrize('run', RUNS)
@pytest.mark.parametrize('hops', [1, 3])
@pytest.mark.parametrize('along', [GRAPH, GRAPH.edge_index.as_tensor()], ids=['graph', 'edges'])
def test_propagate_runs_once_per_call_or_once_per_hop_with_messages(along, hops, run):
    class Counted(EdgeAttention):
        def propagate(self, edge_index, size=None, **kwargs):
            calls.append(type(edge_index))
            return super().propagate(edge_index, size, **kwargs)

    for expected in ([BipartiteGraph], [Tensor] * hops):
        layer, calls = Counted(hops=hops, teleport=.1 * (hops > 1)), []
        if expected != [BipartiteGraph]:
            layer.register_message_forward_hook(lambda *args: None)
        run(layer, along)
        assert calls == expected


@pytest.mark.parametrize('run', RUNS)
@pytest.mark.parametrize('step', [*STEPS, 'update'])
def test_a_subclass_may_replace_any_step(step, run):
    expected = 2 * attend(EdgeAttention())
    for along in (GRAPH, GRAPH.edge_index.as_tensor()):
        torch.testing.assert_close(run(doubled(EdgeAttention, step)(), along), expected)


@pytest.mark.parametrize('step', ['edge_update', 'message', 'aggregate', 'update'])
def test_a_replaced_step_runs_at_every_hop(step):
    layer = doubled(EdgeAttention, step)(hops=2, teleport=.1)
    explicit, _ = layer(*QKV, GRAPH, return_attention_weights=True)
    torch.testing.assert_close(attend(layer), explicit)
    assert not torch.allclose(explicit, 2 * attend(EdgeAttention(hops=2, teleport=.1)))


def test_a_replaced_fused_step_gets_what_pyg_promises():
    class Own(EdgeAttention):
        def message_and_aggregate(self, edge_index, value, graph):
            seen.append(edge_index)
            return value * graph.num_edges

        def update(self, inputs, query):
            return inputs + query

    seen = []
    torch.testing.assert_close(attend(Own()), QKV[2] * GRAPH.num_edges + QKV[0])
    assert seen[0].is_sorted_by_col and torch.equal(seen[0], GRAPH.edge_index)


@pytest.mark.parametrize('run', RUNS)
@pytest.mark.parametrize('step', STEPS)
def test_a_hook_may_replace_an_output(step, run):
    layer = EdgeAttention()
    expected = 2 * attend(layer)
    getattr(layer, f'register_{step}_forward_hook')(lambda module, inputs, out: 2 * out)
    torch.testing.assert_close(run(layer), expected)


def features(layer: MessagePassing) -> Tensor:
    torch.manual_seed(0)
    layer.reset_parameters()
    return layer(QKV[0].flatten(1), GRAPH.edge_index.as_tensor())


@pytest.mark.parametrize('change', [
    *(lambda layer, step=step: doubled(layer, step)(8, 4, 2)
      for step in ('propagate', 'message', 'aggregate', 'update')),
    lambda layer: layer(8, 4, 2, aggr='mean')],
    ids=['propagate', 'message', 'aggregate', 'update', 'aggr'])
def test_a_changed_convolution_is_pygs(change: Callable[[type], MessagePassing]):
    expected = features(change(TransformerConv))
    torch.testing.assert_close(features(change(GraphTransformerConv)), expected)
    assert not torch.allclose(expected, features(TransformerConv(8, 4, 2)))
