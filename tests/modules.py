"""Small modules of every kind, with inputs to train them by."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
from graphattn.samplers import density_penalty
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

CHANNELS, HEADS, LENGTH = 8, 2, 10


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


# Cases ###############################################################################


def steps_to_rounding(teleport: float) -> int:
    """Return how often a step is asked in float32 whether it still changes anything: each step
    shrinks the change by ``1 - teleport`` at least, from a first one of twice the largest value
    down to four roundings of it; and one step more, whose change may be rounding itself."""
    smallest = 4 * torch.finfo(torch.float32).eps / 2
    return 1 + math.ceil(math.log(smallest) / math.log(1 - teleport))


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: tuple[str, ...]  # of INPUTS
    waits: int  # for a GPU in the forward pass, at most
    waits_back: int = 0  # in the backward pass
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
    'every pair': Case(lambda: attention(PatternSource('Full')), X, 1),
    'one-sided': Case(lambda: attention(block_model()), X, 10),
    'paper': Case(lambda: attention(block_model(estimator='paper')), X, 10),
    'repo': Case(lambda: attention(block_model(estimator='repo', preset='repo')), X, 10),
    'poisson': Case(lambda: attention(block_model(distribution='poisson')), X, 3),
    'fixed': Case(lambda: attention(block_model(fixed='SlidingWindow(1)')), X, 14),
    'diagonals': Case(lambda: attention(mask()), X, 3),
    'pairs': Case(lambda: attention(mask(mode='dam_unstructured')), X, 6),
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
    'all hops': Case(lambda: attention(window(), hops=math.inf, teleport=0.5), X,
                     3 + steps_to_rounding(0.5), steps_to_rounding(0.5)),
    'recomputed': Case(lambda: attention(window(), hops=2, teleport=0.1, recompute=True), X, 1, 1),
    'recomputed, drawn': Case(lambda: attention(block_model(), recompute=True), X, 10, 10),
    'shared keys': Case(lambda: attention(window(), num_kv_heads=1), X, 1),
    'density penalty': Case(lambda: Penalised(block_model(), density_penalty), X, 10),
    'norm': Case(lambda: Penalised(mask(), lambda graph: graph.norm()), X, 3),
    'norm of a soft mask': Case(
        lambda: Penalised(mask(mode='soft'), lambda graph: graph.norm()), X, 2),
    'layer': Case(lambda: EncoderLayer(CHANNELS, HEADS, window(), norm_first=True), X, 1),
    'edge_index': Case(ByEdgeIndex, ALONG, 3),
    'edge_index, all hops': Case(lambda: ByEdgeIndex(hops=math.inf, teleport=0.5), ALONG,
                                 6 + steps_to_rounding(0.5), steps_to_rounding(0.5)),
    'messages': Case(lambda: ByEdgeIndex(has_hook=True), ALONG, 3),
    'messages, hops': Case(lambda: ByEdgeIndex(True, hops=2, teleport=0.1), ALONG, 3),
    'transformer conv': Case(lambda: GraphTransformerConv(CHANNELS, 4, HEADS, beta=True), ALONG, 3),
    'skip of a conv': Case(lambda: GraphTransformerConv(CHANNELS, 4, HEADS), ALONG, 3),
    'edges with features': Case(
        lambda: GraphTransformerConv(CHANNELS, 4, HEADS, edge_dim=3), (*ALONG, 'features'), 3),
    'gps': Case(lambda: GraphGPSConv(CHANNELS, None, HEADS, attn_kwargs={
        'source': 'SlidingWindow(1)'}), ALONG, 2),
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
