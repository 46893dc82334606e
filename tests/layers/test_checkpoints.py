"""Checkpoints recompute what was computed, however it is handed over."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

from graphattn import BipartiteGraph
from graphattn.layers import (
    EdgeAttention,
    EncoderLayer,
    GraphAttention,
    GraphGPSConv,
    GraphTransformerConv,
    MultiheadAttention,
    from_torch,
)
from graphattn.models import Encoder
from graphattn.sources import BlockModelSource
from tests.forked import forked
from tests.pairwise import pairwise

BATCH, LENGTH, CHANNELS, HEADS = 2, 6, 8, 2
PADDINGS = {'right': torch.arange(LENGTH) >= torch.tensor([[LENGTH], [4]]),
            'left': torch.arange(LENGTH) < torch.tensor([[0], [2]])}
PTR = torch.tensor([0, 5, 12])
EDGES = torch.tensor([[0, 1, 2, 3, 11, 7], [1, 2, 0, 3, 4, 11]])
PATTERN = 'SlidingWindow(1) | GlobalTokens(1)'


def padded(side: str, source: object = PATTERN, **options) -> tuple[nn.Module, Callable]:
    module = MultiheadAttention(CHANNELS, HEADS, source=source, **options)
    mask = PADDINGS[side]

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return module(query, key, value, key_padding_mask=mask)[0]
    return module, run


def along_torch() -> tuple[nn.Module, Callable]:
    layer = nn.TransformerEncoderLayer(CHANNELS, HEADS, 8, 0., batch_first=True)
    module = from_torch(layer, PATTERN)
    return module, partial(module, src_key_padding_mask=PADDINGS['left'])


def edge_attention() -> tuple[nn.Module, Callable]:
    graph = BipartiteGraph.from_edge_index(EDGES, 12, 12)
    module = EdgeAttention()
    return module, lambda *x: module(*(part.unflatten(1, (HEADS, -1)) for part in x), graph)


def of(module: nn.Module, *others: object, **options: object) -> tuple[nn.Module, Callable]:
    return module, lambda *x: module(*x, *others, **options)


def conv_of_two() -> tuple[nn.Module, Callable]:
    module = GraphTransformerConv(CHANNELS, CHANNELS)
    return module, lambda keys, queries: module((keys, queries), EDGES)


def with_memory() -> tuple[nn.Module, Callable]:
    module = GraphAttention(CHANNELS, HEADS, PATTERN)
    return module, lambda x, memory: module(x, PTR, memory=memory, memory_ptr=PTR)


def attached(kind: str) -> tuple[nn.Module, Callable]:
    transformers = pytest.importorskip('transformers')
    from graphattn.hugging_face import attach
    if kind == 'BERT':
        model = attach(transformers.BertModel(transformers.BertConfig(
            vocab_size=9, hidden_size=CHANNELS, num_hidden_layers=1, num_attention_heads=HEADS,
            intermediate_size=8, hidden_dropout_prob=0., attention_probs_dropout_prob=0.)), PATTERN)
        mask = (~PADDINGS['left']).long()
        return model, lambda x: model(inputs_embeds=x, attention_mask=mask).last_hidden_state
    model = attach(transformers.MobileBertModel(transformers.MobileBertConfig(
        vocab_size=9, hidden_size=CHANNELS, embedding_size=CHANNELS, num_hidden_layers=1,
        num_attention_heads=HEADS, intermediate_size=8, true_hidden_size=CHANNELS,
        intra_bottleneck_size=CHANNELS, attention_probs_dropout_prob=0.)), PATTERN)
    attention, mask = model.encoder.layer[0].attention.self, ~PADDINGS['left'][:, None, None]
    return attention, lambda *x: attention(*x, attention_mask=mask)[0]


# How many tensors each takes, the shape of one, and what makes it.
BATCHED, PACKED = (BATCH, LENGTH, CHANNELS), (12, CHANNELS)
LAYERS = {
    'multihead, right': (3, BATCHED, partial(padded, 'right', batch_first=True)),
    'multihead, left': (3, BATCHED, partial(padded, 'left', batch_first=True)),
    'multihead, length first': (3, (LENGTH, BATCH, CHANNELS), partial(padded, 'left')),
    'multihead, block model': (3, BATCHED, lambda: padded('right', BlockModelSource(
        HEADS, CHANNELS // HEADS, 3), batch_first=True)),
    'from_torch': (1, BATCHED, along_torch),
    'edge attention': (3, PACKED, edge_attention),
    'graph attention': (1, PACKED, lambda: of(GraphAttention(CHANNELS, HEADS, PATTERN), PTR)),
    'hops': (1, PACKED, lambda: of(GraphAttention(CHANNELS, HEADS, PATTERN, hops=2, teleport=.1),
                                   PTR)),
    'memory': (2, PACKED, with_memory),
    'encoder layer': (1, PACKED, lambda: of(EncoderLayer(CHANNELS, HEADS, PATTERN), PTR)),
    'conv': (1, PACKED, lambda: of(GraphTransformerConv(CHANNELS, CHANNELS), EDGES)),
    'conv of two': (2, PACKED, conv_of_two),
    'GPS': (1, PACKED, lambda: of(GraphGPSConv(CHANNELS, GraphTransformerConv(
        CHANNELS, CHANNELS), HEADS, attn_kwargs={'source': PATTERN}), EDGES)),
    'attached': (1, BATCHED, partial(attached, 'BERT')),
    'attached module': (3, BATCHED, partial(attached, 'MobileBERT')),
}
HANDED = {
    'by place': lambda run, x, options: checkpoint(run, *x, **options),
    # Reentrant checkpoints take no tensors by name; what a function has around it is not detached.
    'by name': lambda run, x, options: checkpoint(
        lambda first: run(first, *x[1:]), x[0], **options),
}


def grads_of(module: nn.Module, out: Tensor, inputs: list[Tensor]) -> list[Tensor | None]:
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    (out * weight).sum().backward()
    found = [out.detach(), *(x.grad for x in (*inputs, *module.parameters()))]
    module.zero_grad()
    for x in inputs:
        x.grad = None
    return found


@pytest.mark.filterwarnings('ignore:attention of MobileBert')
@pytest.mark.parametrize('layer, is_one, handed, use_reentrant', pairwise(
    LAYERS, [True, False], HANDED, [True, False],
    among=lambda layer, is_one, *_: LAYERS[layer][0] > 1 or not is_one))
def test_gradients_equal_those_without_a_checkpoint(layer, is_one, handed, use_reentrant):
    torch.manual_seed(0)
    count, shape, make = LAYERS[layer]
    module, run = make()
    module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=.5)
    inputs = [torch.randn(shape, dtype=torch.double, requires_grad=True)
              for _ in range(1 if is_one else count)]
    x = inputs * count if is_one else inputs
    results = []
    for call in (run, lambda *x: HANDED[handed](run, x, {'use_reentrant': use_reentrant})):
        torch.manual_seed(1)
        results.append(grads_of(module, call(*x), inputs))
    torch.testing.assert_close(*results)


@pytest.mark.filterwarnings('ignore')  # by torch, about FSDP without a GPU
@pytest.mark.parametrize('option', ['recompute', 'checkpoint_layers'])
def test_layers_that_fsdp1_shards_are_recomputed(option, tmp_path):
    def train(**options: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = FullyShardedDataParallel(Encoder(
            PATTERN, num_tokens=20, max_length=8, channels=CHANNELS, heads=HEADS, num_layers=2,
            learn_teleport=True, hops=2, teleport=.1, **options), use_orig_params=True,
            device_id=torch.device('cpu'))
        loss = model(torch.arange(12), PTR).square().mean()
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    def work() -> None:
        torch.set_num_threads(1)
        dist.init_process_group('gloo', f'file://{tmp_path}/group', rank=0, world_size=1)
        torch.testing.assert_close(train(**{option: True}), train(), rtol=0, atol=0)

    ended, = forked(work)
    assert ended.returncode == 0, ended.stderr
