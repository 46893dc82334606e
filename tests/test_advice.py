"""Whoever is refused is told of arguments that he can give, and what he is told to do helps."""

from __future__ import annotations

import inspect
import re
import warnings
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
    GraphGPSConv,
    GraphTransformerConv,
    MultiheadAttention,
    from_torch,
)
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

CHANNELS, HEADS, LENGTH = 8, 2, 6
PATTERN, PTR = 'SlidingWindow(1)', torch.tensor([0, 2, 6])
EDGES = torch.tensor([[0, 1, 2, 3, 5], [1, 2, 0, 3, 4]])


def per_head(x: Tensor) -> list[Tensor]:
    return [x.unflatten(-1, (HEADS, -1))] * 3


def soft_mask() -> LearnedMaskSource:
    return LearnedMaskSource(HEADS, LENGTH, mode='soft')


def frozen() -> PatternSource:
    return PatternSource(LearnedMaskSource(HEADS, 4, mode='dam_unstructured').freeze())


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


def llama(along: object, **options):
    transformers = pytest.importorskip('transformers')
    from graphattn.hugging_face import attach
    return attach(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=9, hidden_size=CHANNELS, num_hidden_layers=1, num_attention_heads=HEADS,
        intermediate_size=8, pad_token_id=0, eos_token_id=None)).eval(), along, **options)


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


TOKENS = torch.randint(1, 9, (2, LENGTH), generator=torch.Generator().manual_seed(0))
# What is refused, and the options of whoever called.
REFUSALS = {
    'weights of MultiheadAttention': (
        lambda: MultiheadAttention(CHANNELS, HEADS, source=soft_mask())(
            *[torch.randn(LENGTH, CHANNELS)] * 3), MultiheadAttention, 'forward'),
    'weights of attach': (lambda: bert(soft_mask())(TOKENS, output_attentions=True), 'attach',
                          'forward'),
    'mask of MultiheadAttention': (
        lambda: MultiheadAttention(CHANNELS, HEADS, source=soft_mask())(
            *[torch.randn(LENGTH, CHANNELS)] * 3, need_weights=False, is_causal=True),
        MultiheadAttention, 'forward'),
    'mask of attach': (lambda: llama(soft_mask())(TOKENS), 'attach', 'forward'),
    'length of MultiheadAttention': (
        lambda: MultiheadAttention(CHANNELS, HEADS, source=frozen())(
            *[torch.randn(LENGTH, CHANNELS)] * 3), MultiheadAttention, 'forward'),
    'length of attach': (lambda: bert(frozen())(TOKENS), 'attach', 'forward'),
    'cache of attach': (lambda: llama(BlockModelSource(HEADS, CHANNELS // HEADS, 2)).generate(
        TOKENS, max_new_tokens=2), 'attach', 'generate'),
}


@pytest.mark.parametrize('case', REFUSALS)
def test_what_is_blamed_and_advised_is_an_argument_of_who_called(case):
    call, entry, method = REFUSALS[case]
    with pytest.raises(ValueError) as refused:
        call()
    message = str(refused.value)
    options = options_of(entry) | {'use_cache' if method == 'generate' else 'output_attentions'}
    if not isinstance(entry, str):
        options = options_of(entry) | options_of(entry.forward)
    blamed = re.findall(r"^'(\w+)'", message)
    assert {*blamed, *advised(message)} <= options, message


REPEATED = torch.tensor([[0, 1, 1, 5], [1, 2, 2, 4]])
X = torch.randn(LENGTH, CHANNELS, generator=torch.Generator().manual_seed(0))
# What takes edges of which some are repeated, and what it takes.
ON_REPEATED = {
    'GraphTransformerConv': (GraphTransformerConv, lambda: GraphTransformerConv(CHANNELS, 4)(
        X, REPEATED)),
    'GraphGPSConv': (GraphGPSConv, lambda: GraphGPSConv(
        CHANNELS, GraphTransformerConv(CHANNELS, CHANNELS))(X, REPEATED)),
    'EdgeAttention': (EdgeAttention, lambda: EdgeAttention()(*per_head(X), REPEATED)),
    'EdgeAttention, explicit': (EdgeAttention, lambda: EdgeAttention()(
        *per_head(X), REPEATED, return_attention_weights=True)),
    'from_edge_index': (BipartiteGraph.from_edge_index, lambda: BipartiteGraph.from_edge_index(
        REPEATED, LENGTH, return_perm=True)),
}


@pytest.mark.parametrize('case', ON_REPEATED)
def test_who_has_repeated_edges_is_told_what_he_can_do(case):
    entry, call = ON_REPEATED[case]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter('always')
        try:
            call()
            said, = (str(each.message) for each in warned if '4 edges' in str(each.message))
        except ValueError as error:
            said = str(error)
    options = options_of(entry) | (options_of(entry.forward) if inspect.isclass(entry) else set())
    assert 'torch_geometric.utils.coalesce' in said
    assert {*advised(said), *re.findall(r'(\w+)=', said)} <= options, said
