"""Training on a GPU has the numbers of training on a CPU, and who waits for it has a reason."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from graphattn import kernels
from graphattn.functional import choose
from graphattn.hugging_face import attach
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
from graphattn.sources.graph_cache import GRAPHS

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.simulated_gpu import out_of_memory_after, simulated_gpu  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')]

CHANNELS, HEADS, LENGTH = 8, 2, 10


@pytest.fixture
def gpu(monkeypatch):
    """Both devices draw by the same operations, and so the same graphs."""
    for sampler in (bernoulli, fastrg):
        monkeypatch.setattr(sampler, 'takes_compiled', lambda model, method: False)
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


class ByEdgeIndex(nn.Module):
    """:class:`EdgeAttention` along any edges, message by message where it has a hook."""

    def __init__(self, has_hook: bool = False, **options):
        super().__init__()
        self.linear, self.attention = nn.Linear(CHANNELS, 3 * CHANNELS), EdgeAttention(**options)
        if has_hook:
            self.attention.register_message_forward_hook(lambda *args: None)

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
    inputs: tuple[str, ...]  # of INPUTS
    waits: int  # of the forward pass, at most
    waits_back: int = 0  # of the backward pass
    options: dict[str, Tensor] = {}


INPUTS = {
    'x': torch.randn(LENGTH, CHANNELS, generator=torch.Generator().manual_seed(0)),
    'ptr': torch.tensor([0, 6, LENGTH]),
    'tokens': torch.arange(LENGTH) % 5,
    'edges': torch.tensor([[0, 3, 1, 7, 9, 2, 8], [3, 0, 2, 8, 6, 2, 8]]),
    'features': torch.randn(7, 3, generator=torch.Generator().manual_seed(1)),
}
INPUTS['padded'] = INPUTS['x'].view(2, 5, CHANNELS)
X, TOKENS, ALONG = ('x', 'ptr'), ('tokens', 'ptr'), ('x', 'edges')
CASES = {
    'pattern': Case(lambda: attention(window()), X, 1),
    'one-sided': Case(lambda: attention(block_model()), X, 10),
    'paper': Case(lambda: attention(block_model(estimator='paper')), X, 10),
    'repo': Case(lambda: attention(block_model(estimator='repo', preset='repo')), X, 10),
    'poisson': Case(lambda: attention(block_model(law='poisson')), X, 3),
    'fixed': Case(lambda: attention(block_model(fixed='SlidingWindow(1)')), X, 14),
    'diagonals': Case(lambda: attention(mask()), X, 3),
    'pairs': Case(lambda: attention(mask(mode='dam_unstructured')), X, 6),
    'symmetric pairs': Case(lambda: attention(mask(mode='dam_unstructured', symmetric=True)), X, 6),
    'relaxed mask': Case(lambda: attention(mask(hard=False)), X, 2),
    'soft mask': Case(lambda: attention(mask(mode='soft')), X, 2),
    'edges of the data': Case(AlongEdges, (*X, 'edges'), 11),
    'hops': Case(lambda: attention(window(), hops=3, teleport=0.1), X, 1),
    'teleport of each hop': Case(lambda: attention(window(), hops=2, teleport=[0.1, 0.2]), X, 1),
    'learned teleport': Case(
        lambda: attention(window(), hops=2, teleport=0.1, learn_teleport=True), X, 2),
    'learned teleport, drawn': Case(
        lambda: attention(block_model(), hops=2, teleport=0.1, learn_teleport=True), X, 11),
    'hops of a soft mask': Case(lambda: attention(mask(mode='soft'), hops=2, teleport=0.1), X, 2),
    'all hops': Case(lambda: attention(window(), hops=math.inf, teleport=0.5), X, 18, 15),
    'recomputed': Case(lambda: attention(window(), hops=2, teleport=0.1, recompute=True), X, 1, 1),
    'recomputed, drawn': Case(lambda: attention(block_model(), recompute=True), X, 10, 10),
    'shared keys': Case(lambda: attention(window(), key_heads=1), X, 1),
    'density penalty': Case(lambda: Penalised(block_model(), density_penalty), X, 10),
    'norm': Case(lambda: Penalised(mask(), lambda graph: graph.norm()), X, 3),
    'norm of a soft mask': Case(
        lambda: Penalised(mask(mode='soft'), lambda graph: graph.norm()), X, 2),
    'layer': Case(lambda: EncoderLayer(CHANNELS, HEADS, window(), norm_first=True), X, 1),
    'edge_index': Case(ByEdgeIndex, ALONG, 3),
    'messages': Case(lambda: ByEdgeIndex(has_hook=True), ALONG, 3),
    'messages, hops': Case(lambda: ByEdgeIndex(True, hops=2, teleport=0.1), ALONG, 3),
    'transformer conv': Case(lambda: GraphTransformerConv(CHANNELS, 4, HEADS, beta=True), ALONG, 3),
    'edges with features': Case(
        lambda: GraphTransformerConv(CHANNELS, 4, HEADS, edge_dim=3), (*ALONG, 'features'), 3),
    'gps': Case(lambda: GraphGPSConv(CHANNELS, None, attention('SlidingWindow(1)')), ALONG, 2),
    'padded': Case(lambda: OfItself('SlidingWindow(1)'), ('padded',), 0),
    'padding': Case(lambda: OfItself('SlidingWindow(1)'), ('padded',), 3,
                    options={'key_padding_mask': torch.arange(5) >= torch.tensor([[5], [3]])}),
    'encoder': Case(encoder, TOKENS, 2),
    'segments': Case(lambda: encoder(num_segments=2), TOKENS, 3,
                     options={'segments': torch.arange(LENGTH) % 2}),
    'rotary': Case(lambda: encoder(positions='rotary'), TOKENS, 3),
    'grid': Case(lambda: encoder(positions=[2, 4]), TOKENS, 2),
    'sinusoidal': Case(lambda: encoder(positions='sinusoidal'), TOKENS, 2),
    'padding token': Case(lambda: encoder(padding_token=0), TOKENS, 4),
    'checkpointed': Case(lambda: encoder(checkpoint_layers=True), TOKENS, 2, 2),
    'shared source': Case(lambda: encoder(block_model(), share_source=True), TOKENS, 12),
    'mean': Case(lambda: SequenceClassifier(encoder(), 3), TOKENS, 2),
    'padded mean': Case(lambda: SequenceClassifier(encoder(), 3, pooling='padded_mean'), TOKENS, 2),
    'first': Case(lambda: SequenceClassifier(encoder(), 3, pooling='first'), TOKENS, 2),
    'pooler': Case(lambda: SequenceClassifier(encoder(), 3, pooling='pooler'), TOKENS, 2),
    'pairs of sequences': Case(lambda: PairClassifier(encoder(), 3), TOKENS, 2),
    'classes of tokens': Case(lambda: TokenClassifier(encoder(), 3), TOKENS, 2),
    'masked tokens': Case(lambda: MaskedLanguageModel(encoder()), TOKENS, 3,
                          options={'selected': torch.tensor([1, 7])}),
    'spans': Case(lambda: SpanModel(encoder()), TOKENS, 2),
    'choices': Case(lambda: MultipleChoiceModel(encoder()), TOKENS, 4),
    'next tokens, drawn': Case(
        lambda: CausalLanguageModel(encoder(block_model(), causal=True)), TOKENS, 22),
    'next tokens': Case(lambda: CausalLanguageModel(encoder(causal=True)), TOKENS, 2),
}
class Step(NamedTuple):
    loss: Tensor
    grads: dict[str, Tensor]


def step(module: nn.Module, *inputs: Tensor, gpu: Counter | None = None, **options) -> Step:
    """Forward and backward; what ``gpu`` has counted before the backward pass is ``'forward'``."""
    torch.manual_seed(1)
    module.zero_grad()
    loss = sum(x.square().sum() for x in tree_leaves(module(*inputs, **options))
               if isinstance(x, Tensor))
    if gpu is not None:
        gpu['forward'] = gpu.total()
    loss.backward()
    return Step(loss.detach(), {name: x.grad for name, x in module.named_parameters()
                                if x.grad is not None})


def step_there(gpu: Counter, module: nn.Module, *inputs: Tensor, **options) -> Step:
    """One with a batch of its own, after another that has built what is kept."""
    step(module, *to_gpu(inputs), **to_gpu(options))
    inputs, options = to_gpu((inputs, options))
    gpu.clear()
    return step(module, *inputs, gpu=gpu, **options)


class Backward(torch.autograd.Function):
    """What has the gradient that a function makes of its own."""

    @staticmethod
    def forward(ctx, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


def test_what_a_backward_pass_does_is_seen(gpu):
    x = to_gpu(torch.ones(3)).requires_grad_()
    Backward.apply(x, lambda grad: grad + torch.full((3,), 2., device='cuda')).sum().backward()
    assert x.grad.on_cpu.tolist() == [3.] * 3 and not gpu
    Backward.apply(x, lambda grad: grad * grad.sum().item()).sum().backward()
    assert gpu == {'_local_scalar_dense': 1}
    with pytest.raises(RuntimeError, match='mixes devices'):
        Backward.apply(x, lambda grad: grad + torch.ones(3)).sum().backward()


@pytest.mark.parametrize('name', CASES)
def test_a_step_has_the_numbers_of_cpus(gpu, name):
    case = CASES[name]
    module, inputs = case.make(), [INPUTS[part] for part in case.inputs]
    there = copy.deepcopy(module).to('cuda')
    expected = step(module, *inputs, **case.options)
    found = step_there(gpu, there, *inputs, **case.options)
    forward = gpu.pop('forward')
    assert forward <= case.waits and gpu.total() - forward <= case.waits_back, (forward, gpu)
    assert expected.grads
    torch.testing.assert_close(numbers(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
@pytest.mark.parametrize('name', ['pattern', 'fixed', 'diagonals', 'edges of the data', 'padding'])
def test_a_default_device_changes_nothing(gpu, name, device):
    case = CASES[name]
    module = case.make().to(device)
    inputs, options = tree_map(lambda x: x.to(device), ([INPUTS[part] for part in case.inputs],
                                                        case.options))
    expected = step(module, *inputs, **options)
    GRAPHS.clear()
    with torch.device('cuda'):
        found = step(module, *inputs, **options)
    here = [[getattr(x, 'on_cpu', x) for x in tree_leaves(each)] for each in (found, expected)]
    torch.testing.assert_close(*here)


def test_a_model_of_transformers_is_trained(gpu):
    transformers = pytest.importorskip('transformers')
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=20, hidden_size=CHANNELS, num_attention_heads=HEADS, num_hidden_layers=2,
        intermediate_size=CHANNELS, hidden_dropout_prob=0., attention_probs_dropout_prob=0.))
    attach(model, 'SlidingWindow(1)')
    there = copy.deepcopy(model).to('cuda')
    inputs = {'input_ids': INPUTS['tokens'].view(2, 5),
              'attention_mask': (torch.arange(5) < torch.tensor([[5], [3]])).long()}
    expected, found = step(model, **inputs), step_there(gpu, there, **inputs)
    assert gpu.total() == 2 * gpu['forward'] <= 6, gpu  # for which slots are tokens
    torch.testing.assert_close(numbers(found), expected, rtol=1e-4, atol=1e-4)


TRITON = {
    'pattern': lambda: attention(window()), 'diagonals': lambda: attention(mask()),
    'hops': lambda: attention(window(), hops=2, teleport=0.1, learn_teleport=True),
    'recomputed': lambda: attention(window(), hops=2, teleport=0.1, recompute=True),
}


@pytest.mark.parametrize('name', TRITON)
def test_kernels_of_gpus_train(gpu, monkeypatch, name):
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', kernels.load('triton').name)
    module, inputs = TRITON[name](), (INPUTS['x'], INPUTS['ptr'])
    there = copy.deepcopy(module).to('cuda')
    expected = step(module, *inputs)
    torch.testing.assert_close(numbers(step(there, *to_gpu(inputs))), expected, rtol=1e-4,
                               atol=1e-4)


def test_graphs_that_gpus_draw_are_trained(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', kernels.load('triton').name)
    module = attention(block_model(), dropout=0.5).to('cuda')
    found = step_there(gpu, module, INPUTS['x'], INPUTS['ptr'])
    assert gpu.total() == 2 * gpu['forward'] <= 6, gpu  # ptr, draws, edges; nothing afterwards
    assert found.grads.keys() == dict(module.named_parameters()).keys()
    assert all(bool(x.isfinite().all()) for x in numbers(tree_leaves(found)))


# Memory that runs out #################################################################


@pytest.mark.parametrize('name', ['pattern', 'diagonals', 'edges of the data',
                                  'recomputed, drawn'])
def test_a_step_that_ran_out_of_memory_can_be_taken_again(gpu, name):
    case = CASES[name]
    module = case.make().to('cuda')
    expected = numbers(step(module, *to_gpu([INPUTS[part] for part in case.inputs])))
    for number in count(0, 61):
        GRAPHS.clear()
        inputs, is_done = to_gpu([INPUTS[part] for part in case.inputs]), True
        try:
            with out_of_memory_after(number):
                step(module, *inputs)
        except torch.OutOfMemoryError:
            is_done = False
        found = numbers(step(module, *inputs))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        if is_done:
            break
    assert number > 0
