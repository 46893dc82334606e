"""Hugging Face's Longformer self-attention, with projections that are the identity."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.patterns import GlobalTokens, SlidingWindow
from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import DTYPES, Supports

WINDOW = 2  # tokens on each side


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return Longformer's attention along a window and global tokens, which attend to all keys."""
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
    _, num_tokens, heads, channels = query.shape
    size = heads * channels
    config = SimpleNamespace(hidden_size=size, num_attention_heads=heads,
                             attention_probs_dropout_prob=0., attention_window=[2 * WINDOW])
    module = LongformerSelfAttention(config, 0)
    by_row = [x.reshape(1, num_tokens, size) for x in (query, key, value)]
    for name, x in zip(('query', 'key', 'value'), by_row):
        setattr(module, name, _Given(x))
        # Global queries are selected from the input, which is the query.
        setattr(module, f'{name}_global', torch.nn.Identity() if name == 'query' else _Given(x))
    is_global = mask.all(1).unsqueeze(0) if not mask.all() else torch.zeros(
        1, num_tokens, dtype=torch.bool)
    out, = module(by_row[0], attention_mask=10_000. * is_global,
                  is_index_masked=torch.zeros_like(is_global), is_index_global_attn=is_global,
                  is_global_attn=bool(is_global.any()))
    return out.view(1, num_tokens, heads, channels)


class _Given(torch.nn.Module):
    def __init__(self, result: Tensor):
        super().__init__()
        self.result = result

    # a copy, because Longformer scales the result in place
    def forward(self, x: Tensor) -> Tensor:
        is_by_token = x.size(0) == self.result.size(1)
        return (self.result.transpose(0, 1) if is_by_token else self.result).clone()


def graphs() -> Mapping[str, BipartiteGraph]:
    window = SlidingWindow(WINDOW)
    return {'window of 8 tokens': window.build(8), 'window of 40 tokens': window.build(40),
            'one global token': (window | GlobalTokens(1)).build(12),
            'three global tokens': (window | GlobalTokens(3)).build(40)}


SUPPORTS = Supports(dtypes=DTYPES[:2], strides=True, deterministic=True, limits={
    'double precision': 'the softmax is computed in float32'})
ADAPTERS = {'longformer': Adapter(attention, 'transformers', SUPPORTS, layout='bnhc',
                                  graphs=graphs)}
