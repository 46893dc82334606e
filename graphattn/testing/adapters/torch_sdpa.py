"""torch's ``scaled_dot_product_attention`` with a mask."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              edge_bias: Tensor | None = None, scale: float | None = None, dropout_p: float = 0.,
              kernels: tuple[SDPBackend, ...] = tuple(SDPBackend.__members__.values())) -> Tensor:
    if edge_bias is not None:
        mask = edge_bias.masked_fill(~mask, -torch.inf)
    with sdpa_kernel(list(kernels)):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout_p, scale=scale,
            enable_gqa=key.size(1) < query.size(1))


SUPPORTS = Supports.everything(gate=False, softcap=False, sink=False, second_derivatives=False,
                               exact_logits=False,
                               isolates_nan=False, compiles=False)
ADAPTERS = {
    'torch_sdpa': Adapter(attention, 'torch', SUPPORTS),
    'torch_sdpa_math': Adapter(partial(attention, kernels=(SDPBackend.MATH,)), 'torch', SUPPORTS),
    'torch_sdpa_flash': Adapter(
        partial(attention, kernels=(SDPBackend.FLASH_ATTENTION,)), 'torch',
        replace(SUPPORTS, bias=False, value_channels=False, strides=False, dropout=False)),
}
