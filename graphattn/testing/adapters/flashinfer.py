"""FlashInfer's prefill of one request with a mask. It has no backward pass."""

from __future__ import annotations

from torch import Tensor

from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, softcap: float | None = None) -> Tensor:
    import flashinfer
    return flashinfer.single_prefill_with_kv_cache(query, key, value, custom_mask=mask,
                                                   kv_layout='NHD', sm_scale=scale,
                                                   logits_soft_cap=softcap)


SUPPORTS = Supports(gradients=False, dtypes=DTYPES[2:], channels=(64, 128, 256), scale=True,
                    softcap=True, grouped_queries=True, rectangular=True, deterministic=True)
ADAPTERS = {'flashinfer': Adapter(attention, 'flashinfer', SUPPORTS, layout='nhc', device='cuda')}
