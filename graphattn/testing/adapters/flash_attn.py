"""FlashAttention 2 along all keys, causally and along a window."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports

SIZES = ((1, 1), (12, 12), (5, 17), (150, 150), (300, 300))


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, softcap: float = 0., dropout_p: float = 0.,
              window_size: tuple[int, int] = (-1, -1)) -> Tensor:
    from flash_attn import flash_attn_func
    return flash_attn_func(query, key, value, dropout_p=dropout_p, softmax_scale=scale,
                           softcap=softcap, window_size=window_size)


def graphs(window_size: tuple[int, int] = (-1, -1)) -> Mapping[str, BipartiteGraph]:
    return {f'{rows} queries, {columns} keys': graph(rows, columns, window_size)
            for rows, columns in SIZES}


def graph(rows: int, columns: int, window_size: tuple[int, int]) -> BipartiteGraph:
    """Return the mask that flash-attn documents for a window, as a graph.

    Args:
        rows (int): Number of queries.
        columns (int): Number of keys. The last query and the last key have the same position.
        window_size (tuple of int): Number of keys before and after a query; -1 for all.
    """
    before, after = (columns if reach < 0 else reach for reach in window_size)
    distance = torch.arange(columns) - torch.arange(rows).unsqueeze(1) - (columns - rows)
    return BipartiteGraph.from_mask((distance >= -before) & (distance <= after))


SUPPORTS = Supports(dtypes=DTYPES[2:], channels=(8, 24, 64, 128, 192, 256), scale=True,
                    softcap=True, grouped_queries=True, rectangular=True, strides=True,
                    dropout=True)
KINDS = {'flash_attn': (-1, -1), 'flash_attn_causal': (-1, 0), 'flash_attn_window': (7, 3)}
ADAPTERS = {name: Adapter(partial(attention, window_size=size),
                          'flash_attn.flash_attn_interface', SUPPORTS, layout='bnhc',
                          graphs=partial(graphs, size), device='cuda')
            for name, size in KINDS.items()}
