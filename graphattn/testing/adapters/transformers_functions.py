"""Attention functions of Hugging Face's transformers: eager, and through torch's SDPA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import DTYPES, Supports


def eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
          edge_bias: Tensor | None = None, scale: float | None = None,
          dropout_p: float = 0.) -> Tensor:
    return _attend(_eager_of('llama'), query, key, value, _added(mask, query, edge_bias), scale,
                   dropout_p)


def gemma2(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
           edge_bias: Tensor | None = None, scale: float | None = None,
           softcap: float | None = None, dropout_p: float = 0.) -> Tensor:
    return _attend(_eager_of('gemma2'), query, key, value, _added(mask, query, edge_bias), scale,
                   dropout_p, softcap=softcap)


def gpt_oss(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
            edge_bias: Tensor | None = None, scale: float | None = None,
            sink: Tensor | None = None, dropout_p: float = 0.) -> Tensor:
    none = query.new_full((query.size(1),), -torch.inf)
    return _attend(_eager_of('gpt_oss'), query, key, value, _added(mask, query, edge_bias), scale,
                   dropout_p, sinks=none if sink is None else sink)


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float | None = None,
         dropout_p: float = 0.) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    return _attend(sdpa_attention_forward, query, key, value, mask[None, None], scale, dropout_p)


def _eager_of(family: str) -> Callable[..., tuple[Tensor, Tensor]]:
    return import_module(f'transformers.models.{family}.modeling_{family}').eager_attention_forward


def _added(mask: Tensor, query: Tensor, bias: Tensor | None) -> Tensor:
    # [1, heads, num_queries, num_keys]
    lowest = torch.finfo(query.dtype).min  # what masking_utils fills in
    additive = torch.zeros_like(mask, dtype=query.dtype) if bias is None else bias
    return additive.masked_fill(~mask, lowest).expand(1, query.size(1), *mask.shape)


def _attend(attend: Callable[..., tuple[Tensor, Tensor]], query: Tensor, key: Tensor,
            value: Tensor, mask: Tensor, scale: float | None, dropout_p: float,
            sinks: Tensor | None = None, **options: Any) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=query.size(1) // key.size(1), training=True,
                             is_causal=False, sinks=sinks)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    out, _ = attend(module, query, key, value, mask, dropout=dropout_p, scaling=scale, **options)
    return out.transpose(1, 2)


SUPPORTS = Supports(dtypes=DTYPES, scale=True, grouped_queries=True, value_channels=True,
                    rectangular=True, strides=True, dropout=True, deterministic=True)
LIMITS = {'double precision': 'the softmax is computed in float32',
          'nothing to attend to': 'a query without keys attends to all of them'}
ADAPTERS = {'transformers_eager': Adapter(eager, 'transformers', replace(SUPPORTS, limits=LIMITS)),
            'transformers_gemma2': Adapter(gemma2, 'transformers', replace(
                SUPPORTS, softcap=True, limits=LIMITS)),
            'transformers_gpt_oss': Adapter(gpt_oss, 'transformers', replace(
                SUPPORTS, sink=True, limits={
                    'nothing to attend to': LIMITS['nothing to attend to']})),
            'transformers_sdpa': Adapter(sdpa, 'transformers', replace(SUPPORTS, limits={
                'nothing to attend to': 'no queries are refused by torch'}))}
