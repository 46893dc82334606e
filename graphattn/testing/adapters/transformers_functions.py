"""Attention functions of Hugging Face's transformers: eager, and through torch's SDPA."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports


def eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
          edge_bias: Tensor | None = None, scale: float | None = None,
          dropout_p: float = 0.) -> Tensor:
    from transformers.models.llama.modeling_llama import eager_attention_forward
    lowest = torch.finfo(query.dtype).min  # what masking_utils fills in
    additive = torch.zeros_like(mask, dtype=query.dtype) if edge_bias is None else edge_bias
    out, _ = eager_attention_forward(_module(query, key), query, key, value,
                                     additive.masked_fill(~mask, lowest).expand(
                                         1, query.size(1), *mask.shape),
                                     _scale(query, scale), dropout_p)
    return out.transpose(1, 2)


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float | None = None,
         dropout_p: float = 0.) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    out, _ = sdpa_attention_forward(_module(query, key), query, key, value, mask[None, None],
                                    dropout_p, _scale(query, scale))
    return out.transpose(1, 2)


def _module(query: Tensor, key: Tensor) -> SimpleNamespace:
    return SimpleNamespace(num_key_value_groups=query.size(1) // key.size(1), training=True,
                           is_causal=False)


def _scale(query: Tensor, scale: float | None) -> float:
    return query.size(-1) ** -0.5 if scale is None else scale


SUPPORTS = Supports(dtypes=DTYPES, scale=True, grouped_queries=True, value_channels=True,
                    rectangular=True, strides=True, dropout=True, deterministic=True)
LIMITS = {'double precision': 'the softmax is computed in float32',
          'nothing to attend to': 'a query without keys attends to all of them'}
ADAPTERS = {'transformers_eager': Adapter(eager, 'transformers', replace(SUPPORTS, limits=LIMITS)),
            'transformers_sdpa': Adapter(sdpa, 'transformers', replace(SUPPORTS, limits={
                'nothing to attend to': 'no queries are refused by torch'}))}
