"""attention-gym's gather_attn, written for version 0.0.17: each query attends to listed keys.

It has one tensor for keys and values, so a row holds both here, and queries are padded with 0. Its
window of local keys is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.graphs import GRAPHS
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, indices: Tensor, *,
              scale: float | None = None, sink: Tensor | None = None,
              impl: str = 'reference') -> Tensor:
    from attn_gym.sparse import gather_attn
    both, channels = torch.cat([key, value], dim=-1), key.size(-1)
    query = F.pad(query, (0, value.size(-1)))
    out = gather_attn(query, torch.zeros_like(query), both, indices.unsqueeze(0), sink, impl=impl,
                      sliding_window_size=0, scale=channels**-0.5 if scale is None else scale)
    return out[..., channels:]


def graphs() -> Mapping[str, BipartiteGraph]:
    """Return the graphs on which attn_gym is tested. Larger graphs are left out, because attn_gym
    forms a mask of all pairs of queries."""
    return {name: graph for name, graph in GRAPHS.items() if graph.num_queries < 5000}


SUPPORTS = Supports(dtypes=DTYPES, sink=True, value_channels=True, rectangular=True,
                    empty_rows=True, strides=True, deterministic=True, limits={
                        'nothing to attend to': 'without queries it raises a ValueError',
                        'repeated edges': 'a repeated index counts as often as it is repeated',
                        'scale': 'it must be positive'})
ADAPTERS = {'attn_gym': Adapter(attention, 'attn_gym', SUPPORTS, form='indices',
                                graphs=graphs),
            'attn_gym_fused': Adapter(partial(attention, impl='fused'), 'attn_gym', SUPPORTS,
                                      form='indices', device='cuda')}
