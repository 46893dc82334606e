"""FlashAttention 4 along all keys, causally, along a window and with any mask, with a sink and a
softcap.

Written for flash-attn-4 4.0.0b36, on Hopper and Blackwell. It is imported as ``flash_attn.cute``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.adapters.flash_attn import KINDS, graphs
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, softcap: float = 0., sink: Tensor | None = None,
              window_size: tuple[int, int] = (-1, -1), by_mask: bool = False) -> Tensor:
    from flash_attn.cute import flash_attn_func
    reach = tuple(None if size < 0 else size for size in window_size)  # of tokens on each side
    pairs = {'mask_mod': _mask_mod(), 'aux_tensors': [mask.int()]} if by_mask else {}
    out, _ = flash_attn_func(query, key, value, softmax_scale=scale, window_size=reach,
                             learnable_sink=sink, softcap=softcap, **pairs)
    return out


def _mask_mod() -> Callable[..., Any]:
    """Return a ``mask_mod`` of FlashAttention 4: a function in CuTe's language that looks up in a
    table whether a query attends to a key."""
    import cutlass
    from cutlass import cute
    from flash_attn.cute import utils

    @cute.jit
    def mask_mod(batch, head, row, column, seqlen_info, aux_tensors):
        is_edge = utils.scalar_to_ssa(aux_tensors[0][row[0], column[0]], cutlass.Int32)
        return is_edge > utils.scalar_to_ssa(0, cutlass.Int32)

    return mask_mod


SUPPORTS = Supports(dtypes=DTYPES[2:], channels=(64, 96, 128), scale=True, softcap=True, sink=True,
                    grouped_queries=True, rectangular=True, strides=True)
ADAPTERS = {name.replace('flash_attn', 'flash_attn_4'): Adapter(
    partial(attention, window_size=size), 'flash_attn.cute', SUPPORTS, layout='bnhc',
    graphs=partial(graphs, size), device='cuda') for name, size in KINDS.items()} | {
        'flash_attn_4_mask': Adapter(partial(attention, by_mask=True), 'flash_attn.cute', SUPPORTS,
                                     layout='bnhc', device='cuda', options={'time_limit': 120.})}
