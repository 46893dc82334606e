"""Training on a GPU has the numbers of training on a CPU, and who waits for it has a reason."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from graphattn import kernels
from graphattn.functional import choose
from graphattn.layers import (
    EdgeAttention,
    EncoderLayer,
    GraphAttention,
    GraphGPSConv,
    GraphTransformerConv,
    MultiheadAttention,
)
from graphattn.models import (
    CausalLanguageModel,
    Encoder,
    MaskedLanguageModel,
    MultipleChoiceModel,
    PairClassifier,
    SequenceClassifier,
    SpanModel,
    TokenClassifier,
)
from graphattn.patterns import SlidingWindow
from graphattn.samplers import bernoulli, density_penalty, fastrg
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.simulated_gpu import simulated_gpu  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')]

CHANNELS, HEADS, LENGTH = 8, 2, 10


@pytest.fixture
def gpu(monkeypatch):
    """Both devices draw by the same operations, and so the same graphs."""
    for sampler in (bernoulli, fastrg):
        monkeypatch.setattr(sampler, 'takes_compiled', lambda model, method: False)
    monkeypatch.setattr(bernoulli, 'takes_triton', lambda model, method: False)
    # Whose operators are not torch's, and want a real GPU.
    monkeypatch.setattr('torch_geometric.typing.WITH_TORCH_SCATTER', False)
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', 'gather')
    with torch.random.fork_rng(devices=[]), simulated_gpu() as waits:
        torch.manual_seed(0)
        yield waits


def to_gpu(tree: Any) -> Any:
    return tree_map(lambda x: x.to('cuda', non_blocking=True) if isinstance(x, Tensor) else x,
                    tree)


def numbers(tree: Any) -> Any:
    """Those of tensors that all are on the GPU."""
    return tree_map(lambda x: x.on_cpu, tree)


# Modules #############################################################################


def window() -> PatternSource:
    return PatternSource(SlidingWindow(1))


def block_model(**options) -> BlockModelSource:
    return BlockModelSource(HEADS, CHANNELS // HEADS, 4, **options)


def mask(**options) -> LearnedMaskSource:
    return LearnedMaskSource(HEADS, LENGTH, init_std=1., **options)


def attention(source, **options) -> GraphAttention:
    return GraphAttention(CHANNELS, HEADS, source, **options)


def encoder(source=None, **options) -> Encoder:
    return Encoder(source or window(), num_tokens=20, max_length=8, channels=CHANNELS, heads=HEADS,
                   num_layers=2, **options)


class AlongEdges(nn.Module):
    """Attention along a pattern and edges of the data."""

    def __init__(self):
        super().__init__()
        self.attention = attention(None)

    def forward(self, x: Tensor, ptr: Tensor, edges: Tensor) -> Tensor:
        return self.attention(x, ptr, source=window() | edges)


class Messages(nn.Module):
    """:class:`EdgeAttention` message by message, along edges in any order."""

    def __init__(self, **options):
        super().__init__()
        self.linear, self.attention = nn.Linear(CHANNELS, 3 * CHANNELS), EdgeAttention(**options)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.attention(*self.linear(x).view(len(x), 3, HEADS, -1).unbind(1), edges)


class OfItself(nn.Module):
    """Attention of padded sequences to themselves."""

    def __init__(self, source: str):
        super().__init__()
        self.attention = MultiheadAttention(CHANNELS, HEADS, batch_first=True, source=source)

    def forward(self, x: Tensor, **options) -> Tensor:
        return self.attention(x, x, x, **options)[0]


class Penalised(nn.Module):
    """Attention, and a penalty on its graph."""

    def __init__(self, source, penalty: Callable):
        super().__init__()
        self.attention, self.penalty = attention(source), penalty

    def forward(self, x: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
        out, graph = self.attention(x, ptr, return_graph=True)
        return out, self.penalty(graph)


# Steps ###############################################################################


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: tuple  # of INPUTS
    waits: int = 0  # the most, forward and backward
    options: dict = {}


EDGES = torch.tensor([[0, 3, 1, 7, 9, 2, 8], [3, 0, 2, 8, 6, 2, 8]])
INPUTS = {
    'x': torch.randn(LENGTH, CHANNELS, generator=torch.Generator().manual_seed(0)),
    'ptr': torch.tensor([0, 6, LENGTH]),
    'tokens': torch.arange(LENGTH) % 5,
    'edges': EDGES,
}
X, TOKENS, ALONG = ('x', 'ptr'), ('tokens', 'ptr'), ('x', 'edges')
DRAWN = 9
CASES = {
    'pattern': Case(lambda: attention(window()), X),
    'one-sided': Case(lambda: attention(block_model()), X),
    'paper': Case(lambda: attention(block_model(estimator='paper')), X),
    'repo': Case(lambda: attention(block_model(estimator='repo', preset='repo')), X),
    'poisson': Case(lambda: attention(block_model(law='poisson')), X),
    'fixed': Case(lambda: attention(block_model(fixed='SlidingWindow(1)')), X),
    'diagonals': Case(lambda: attention(mask()), X),
    'pairs': Case(lambda: attention(mask(mode='dam_unstructured')), X),
    'symmetric pairs': Case(lambda: attention(mask(mode='dam_unstructured', symmetric=True)), X),
    'relaxed mask': Case(lambda: attention(mask(hard=False)), X),
    'soft mask': Case(lambda: attention(mask(mode='soft')), X),
    'edges of the data': Case(AlongEdges, (*X, 'edges')),
    'hops': Case(lambda: attention(window(), hops=3, teleport=0.1), X),
    'teleport of each hop': Case(lambda: attention(window(), hops=2, teleport=[0.1, 0.2]), X),
    'learned teleport': Case(
        lambda: attention(window(), hops=2, teleport=0.1, learn_teleport=True), X),
    'learned teleport, drawn': Case(
        lambda: attention(block_model(), hops=2, teleport=0.1, learn_teleport=True), X),
    'hops of a soft mask': Case(lambda: attention(mask(mode='soft'), hops=2, teleport=0.1), X),
    'all hops': Case(lambda: attention(window(), hops=math.inf, teleport=0.5), X),
    'recomputed': Case(lambda: attention(window(), hops=2, teleport=0.1, recompute=True), X),
    'recomputed, drawn': Case(lambda: attention(block_model(), recompute=True), X),
    'shared keys': Case(lambda: attention(window(), key_heads=1), X),
    'density penalty': Case(lambda: Penalised(block_model(), density_penalty), X),
    'norm': Case(lambda: Penalised(mask(), lambda graph: graph.norm()), X),
    'norm of a soft mask': Case(
        lambda: Penalised(mask(mode='soft'), lambda graph: graph.norm()), X),
    'layer': Case(lambda: EncoderLayer(CHANNELS, HEADS, window(), norm_first=True), X),
    'messages': Case(Messages, ALONG),
    'messages, hops': Case(lambda: Messages(hops=2, teleport=0.1), ALONG),
    'transformer conv': Case(lambda: GraphTransformerConv(CHANNELS, 4, HEADS, beta=True), ALONG),
    'gps': Case(lambda: GraphGPSConv(CHANNELS, None, attention('SlidingWindow(1)')), ALONG),
    'padded': Case(lambda: OfItself('SlidingWindow(1)'), ('padded',)),
    'padding': Case(lambda: OfItself('SlidingWindow(1)'), ('padded',),
                    options={'key_padding_mask': torch.arange(5) >= torch.tensor([[5], [3]])}),
    'encoder': Case(encoder, TOKENS),
    'segments': Case(lambda: encoder(num_segments=2), TOKENS,
                     options={'segments': torch.arange(LENGTH) % 2}),
    'rotary': Case(lambda: encoder(positions='rotary'), TOKENS),
    'grid': Case(lambda: encoder(positions=[2, 4]), TOKENS),
    'sinusoidal': Case(lambda: encoder(positions='sinusoidal'), TOKENS),
    'padding token': Case(lambda: encoder(padding_token=0), TOKENS),
    'checkpointed': Case(lambda: encoder(checkpoint_layers=True), TOKENS),
    'shared source': Case(lambda: encoder(block_model(), share_source=True), TOKENS),
    'mean': Case(lambda: SequenceClassifier(encoder(), 3), TOKENS),
    'padded mean': Case(lambda: SequenceClassifier(encoder(), 3, pooling='padded_mean'), TOKENS),
    'first': Case(lambda: SequenceClassifier(encoder(), 3, pooling='first'), TOKENS),
    'pooler': Case(lambda: SequenceClassifier(encoder(), 3, pooling='pooler'), TOKENS),
    'pairs of sequences': Case(lambda: PairClassifier(encoder(), 3), TOKENS),
    'classes of tokens': Case(lambda: TokenClassifier(encoder(), 3), TOKENS),
    'masked tokens': Case(lambda: MaskedLanguageModel(encoder()), TOKENS,
                          options={'selected': torch.tensor([1, 7])}),
    'spans': Case(lambda: SpanModel(encoder()), TOKENS),
    'choices': Case(lambda: MultipleChoiceModel(encoder()), TOKENS),
    'next tokens': Case(lambda: CausalLanguageModel(encoder(causal=True)), TOKENS),
}
INPUTS['padded'] = INPUTS['x'].view(2, 5, CHANNELS)


class Step(NamedTuple):
    loss: Tensor
    grads: dict[str, Tensor]


def step(run: Callable, module: nn.Module, gpu=None) -> Step:
    torch.manual_seed(1)
    module.zero_grad()
    loss = sum(x.square().sum() for x in tree_leaves(run(module)))
    if gpu is not None: gpu['forward'] = gpu.total()
    loss.backward()
    return Step(loss.detach(), {name: x.grad for name, x in module.named_parameters()
                                if x.grad is not None})


def steps(gpu, module: nn.Module, *inputs: Tensor, **options) -> tuple[Step, Step]:
    """One here, and the second one there, which finds what is kept."""
    def run(module: nn.Module) -> Any:
        return module(*inputs, **options)

    there = copy.deepcopy(module).to('cuda')
    expected = step(run, module)
    step(lambda module: module(*to_gpu(inputs), **to_gpu(options)), there)
    gpu.clear()
    inputs, options = to_gpu((inputs, options))
    return step(run, there, gpu), expected


@pytest.mark.parametrize('name', CASES)
def test_a_step_has_the_numbers_of_cpus(gpu, name):
    case = CASES[name]
    found, expected = steps(gpu, case.make(), *(INPUTS[part] for part in case.inputs),
                            **case.options)
    print('WAITS', gpu['forward'], gpu.total() - gpu['forward'], dict(gpu))
    assert expected.grads
    torch.testing.assert_close(numbers(found), expected, rtol=1e-4, atol=1e-4)
