"""What whoever asks for second derivatives is told to do helps."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphattn import BipartiteGraph, functional
from graphattn._explained import parameters_of
from graphattn.layers import (
    EdgeAttention,
    EncoderLayer,
    GraphAttention,
    GraphTransformerConv,
    MultiheadAttention,
    from_torch,
)

CHANNELS, HEADS, LENGTH = 8, 2, 6
PATTERN, PTR = 'SlidingWindow(1)', torch.tensor([0, 2, 6])
EDGES = torch.tensor([[0, 1, 2, 3, 5], [1, 2, 0, 3, 4]])


def per_head(x: Tensor) -> list[Tensor]:
    return [x.unflatten(-1, (HEADS, -1))] * 3


def graph() -> BipartiteGraph:
    return BipartiteGraph.from_edge_index(EDGES, LENGTH, LENGTH)


def multihead(**options) -> Callable:
    module = MultiheadAttention(CHANNELS, HEADS, source=PATTERN, **options)
    return lambda x: module(x, x, x, need_weights=False)[0]


def converted(**options) -> Callable:
    layer = nn.TransformerEncoderLayer(CHANNELS, HEADS, 8, 0.)
    module = from_torch(layer, PATTERN, **options)
    return lambda x: module(x.unsqueeze(1))


def bert(along: object, **options):
    transformers = pytest.importorskip('transformers')
    from graphattn.hugging_face import attach
    return attach(transformers.BertModel(transformers.BertConfig(
        vocab_size=9, hidden_size=CHANNELS, num_hidden_layers=1, num_attention_heads=HEADS,
        intermediate_size=8)).eval(), along, **options)


def attached(**options) -> Callable:
    model = bert(PATTERN, **options)
    return lambda x: model(inputs_embeds=x.unsqueeze(0)).last_hidden_state


def layer_of(kind: type, *others: object) -> Callable:
    def make(**options) -> Callable:
        module = kind(CHANNELS, *others, **options)
        return lambda x: module(x, EDGES if kind is GraphTransformerConv else PTR)
    return make


# What takes the options of each, and what makes a function of tokens with them.
ENTRIES = {
    'functional': (functional.edge_attention, lambda **options: (
        lambda x: functional.edge_attention(*per_head(x), graph(), **options))),
    'EdgeAttention': (EdgeAttention, lambda **options: (
        lambda x: EdgeAttention(**options)(*per_head(x), graph()))),
    'GraphAttention': (GraphAttention, layer_of(GraphAttention, HEADS, PATTERN)),
    'EncoderLayer': (EncoderLayer, layer_of(EncoderLayer, HEADS, PATTERN)),
    'GraphTransformerConv': (GraphTransformerConv, layer_of(GraphTransformerConv, CHANNELS)),
    'MultiheadAttention': (MultiheadAttention, multihead),
    'from_torch': (from_torch, converted),
    'attach': ('graphattn.hugging_face', attached),
}


def differentiate_twice(run: Callable) -> None:
    x = torch.randn(LENGTH, CHANNELS, requires_grad=True)
    grad, = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
    grad.square().sum().backward()


def advised(message: str) -> dict[str, object]:
    """The options that a message names, with their values."""
    found = re.findall(r"(\w+)=('\w+'|\w+)", message.rpartition(';')[2])
    return {name: value.strip("'") if "'" in value else value == 'True' for name, value in found}


def options_of(entry: Callable | str) -> set[str]:
    if isinstance(entry, str):
        pytest.importorskip('transformers')
        from graphattn.hugging_face import attach as entry
    named = parameters_of(entry) if inspect.isclass(entry) else None
    return set(named or inspect.signature(entry).parameters)


@pytest.mark.parametrize('backend', ['auto', 'numba', 'sdpa'])
@pytest.mark.parametrize('name', ENTRIES)
def test_who_asks_for_second_derivatives_is_told_how_to_have_them(name, backend):
    entry, make = ENTRIES[name]
    torch.manual_seed(0)
    with pytest.raises(NotImplementedError, match='has no second derivative') as refused:
        differentiate_twice(make(backend=backend))
    advice = advised(str(refused.value))
    assert advice and advice.keys() <= options_of(entry)
    differentiate_twice(make(**advice))
