"""``LocalAttention`` of local-attention, with and without a causal mask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports

WINDOW = 4


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, dropout_p: float = 0., **options: bool) -> Tensor:
    from local_attention import LocalAttention
    attend = LocalAttention(WINDOW, scale=scale, dropout=dropout_p, use_rotary_pos_emb=False,
                            autopad=True, **options)
    return attend(query, key, value)


def graphs(causal: bool = False, exact_windowsize: bool = False) -> Mapping[str, BipartiteGraph]:
    return {f'{size} tokens': graph(size, causal, exact_windowsize) for size in (8, 10, 41)}


def graph(num_tokens: int, causal: bool, exact_windowsize: bool) -> BipartiteGraph:
    """Return the mask that local-attention documents, as a graph. A query attends to its own block
    of ``WINDOW`` tokens and to one block on each side; with ``exact_windowsize``, it attends to
    ``WINDOW`` tokens on each side."""
    token = torch.arange(num_tokens)
    distance = token.unsqueeze(1) - token
    windows = token.unsqueeze(1) // WINDOW - token // WINDOW
    reach = distance.abs() <= WINDOW if exact_windowsize else windows.abs() <= 1
    return BipartiteGraph.from_mask(reach & (distance >= 0) if causal else reach)


SUPPORTS = Supports(dtypes=DTYPES, scale=True, value_channels=True, strides=True, dropout=True,
                    deterministic=True)
KINDS = {'local_attention': {}, 'local_attention_causal': {'causal': True},
         'local_attention_exact': {'exact_windowsize': True}}
ADAPTERS = {name: Adapter(partial(attention, **options), 'local_attention', SUPPORTS,
                          graphs=partial(graphs, **options)) for name, options in KINDS.items()}
