"""NATTEN's neighbourhood attention along one axis, with and without a causal mask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports

KERNEL_SIZE = 5


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, causal: bool = False) -> Tensor:
    from natten import na1d
    return na1d(query, key, value, kernel_size=KERNEL_SIZE, is_causal=causal, scale=scale)


def graphs(causal: bool = False) -> Mapping[str, BipartiteGraph]:
    return {f'{size} tokens': graph(size, causal) for size in (5, 12, 150, 300)}


def graph(num_tokens: int, causal: bool) -> BipartiteGraph:
    """Return the mask that NATTEN documents, as a graph. A token attends to the ``KERNEL_SIZE``
    tokens around it or, near an end, to the ``KERNEL_SIZE`` tokens at this end. If ``causal``, it
    attends to itself and the tokens before it, ``KERNEL_SIZE`` in all."""
    token = torch.arange(num_tokens)
    begin = token - KERNEL_SIZE // 2
    begin = token - KERNEL_SIZE + 1 if causal else begin.clamp(0, num_tokens - KERNEL_SIZE)
    distance = token - begin.unsqueeze(1)
    return BipartiteGraph.from_mask((distance >= 0) & (distance < KERNEL_SIZE))


SUPPORTS = Supports(dtypes=DTYPES[2:], channels=(32, 64, 128), scale=True, grouped_queries=True)
ADAPTERS = {'natten': Adapter(attention, 'natten', SUPPORTS, layout='bnhc', graphs=graphs,
                              device='cuda'),
            'natten_causal': Adapter(partial(attention, causal=True), 'natten', SUPPORTS,
                                     layout='bnhc', graphs=partial(graphs, True), device='cuda')}
