"""FlashAttention 4 along all keys, causally and along a window, with a sink and a softcap.

Written for flash-attn-4 4.0.0b36, on Hopper and Blackwell. It is imported as ``flash_attn.cute``.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.adapters.flash_attn import KINDS, graphs
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, softcap: float = 0., sink: Tensor | None = None,
              window_size: tuple[int, int] = (-1, -1)) -> Tensor:
    from flash_attn.cute import flash_attn_func
    reach = tuple(None if size < 0 else size for size in window_size)  # of tokens on each side
    out, _ = flash_attn_func(query, key, value, softmax_scale=scale, window_size=reach,
                             learnable_sink=sink, softcap=softcap)
    return out


SUPPORTS = Supports(dtypes=DTYPES[2:], channels=(64, 96, 128), scale=True, softcap=True, sink=True,
                    grouped_queries=True, rectangular=True, strides=True)
ADAPTERS = {name.replace('flash_attn', 'flash_attn_4'): Adapter(
    partial(attention, window_size=size), 'flash_attn.cute', SUPPORTS, layout='bnhc',
    graphs=partial(graphs, size), device='cuda') for name, size in KINDS.items()}
