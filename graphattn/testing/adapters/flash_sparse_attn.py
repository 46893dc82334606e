"""flash-sparse-attn, written for version 2.0.6: its dense kernel, and the sparse one with a
threshold of 0, below which no tile of weights lies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.adapters.flash_attn import SIZES
from graphattn.testing.supports import DTYPES, Supports

FIRST, FAR, GAP, NEAR = WINDOW = 2, 4, 5, 7  # numbers of keys


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, causal: bool = False, window: bool = False,
              sparse: bool = False) -> Tensor:
    from flash_sparse_attn import flash_dense_attn_func, flash_sparse_attn_func
    windows = torch.tensor([WINDOW] * key.size(2), dtype=torch.int32,
                           device=key.device) if window else None
    options = dict(is_causal=causal, softmax_scale=scale, window_sizes=windows)
    if sparse:
        return flash_sparse_attn_func(query, key, value, softmax_threshold=0., **options)
    return flash_dense_attn_func(query, key, value, **options)


def graphs(causal: bool = False, window: bool = False,
           sparse: bool = False) -> Mapping[str, BipartiteGraph]:
    return {f'{rows} queries, {columns} keys': graph(rows, columns, causal, window)
            for rows, columns in SIZES}


def graph(rows: int, columns: int, causal: bool, window: bool) -> BipartiteGraph:
    """Return the mask that flash-sparse-attn documents, as a graph of ``rows`` queries and
    ``columns`` keys. The last query and the last key have the same position. With ``window``, a
    query attends to the first keys, to its nearest keys, and to a band of keys farther before
    it."""
    column = torch.arange(columns)
    before = torch.arange(rows).unsqueeze(1) + columns - rows - column
    is_far = (before >= NEAR + GAP) & (before < NEAR + GAP + FAR)
    mask = (before >= 0) | torch.tensor(not causal)
    return BipartiteGraph.from_mask(
        mask & ((column < FIRST) | (before < NEAR) | is_far) if window else mask)


SUPPORTS = Supports(dtypes=DTYPES[2:], channels=(16, 32, 64, 128, 256), scale=True,
                    grouped_queries=True, rectangular=True, strides=True)
KINDS = {'flash_sparse_attn_dense': {}, 'flash_sparse_attn_causal': {'causal': True},
         'flash_sparse_attn_window': {'causal': True, 'window': True},
         'flash_sparse_attn': {'causal': True, 'sparse': True}}
ADAPTERS = {name: Adapter(partial(attention, **options), 'flash_sparse_attn', SUPPORTS,
                          layout='bnhc', graphs=partial(graphs, **options), device='cuda')
            for name, options in KINDS.items()}
