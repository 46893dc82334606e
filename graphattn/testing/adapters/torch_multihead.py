"""torch's ``multi_head_attention_forward``, the function of ``nn.MultiheadAttention``, with
projections that are the identity."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              edge_bias: Tensor | None = None, dropout_p: float = 0.,
              needs_weights: bool = False) -> Tensor:
    _, heads, num_queries, channels = query.shape
    identity = torch.eye(heads * channels, dtype=query.dtype, device=query.device)
    if edge_bias is not None:
        mask = edge_bias.squeeze(0).masked_fill(~mask, -torch.inf)
    else:
        mask = ~mask  # True keeps a query from a key here
    rows = [x.squeeze(0).transpose(0, 1).reshape(x.size(2), 1, heads * channels)
            for x in (query, key, value)]
    out, _ = F.multi_head_attention_forward(
        *rows, heads * channels, heads, None, None, None, None, False, dropout_p, identity, None,
        training=True, need_weights=needs_weights, attn_mask=mask, use_separate_proj_weight=True,
        q_proj_weight=identity, k_proj_weight=identity, v_proj_weight=identity)
    return out.view(num_queries, heads, channels).transpose(0, 1).unsqueeze(0)


def attention_with_weights(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
                           edge_bias: Tensor | None = None, dropout_p: float = 0.) -> Tensor:
    return attention(query, key, value, mask, edge_bias=edge_bias, dropout_p=dropout_p,
                     needs_weights=True)


SUPPORTS = Supports(dtypes=DTYPES, bias=True, rectangular=True, empty_rows=True, strides=True,
                    dropout=True, deterministic=True)
LIMITS = {'nothing to attend to': 'with need_weights queries without keys are NaN, no keys at all '
                                  'with a bias are refused'}
ADAPTERS = {'torch_multihead': Adapter(attention, 'torch', replace(SUPPORTS, limits=LIMITS)),
            'torch_multihead_weights': Adapter(attention_with_weights, 'torch',
                                               replace(SUPPORTS, limits=LIMITS))}
