"""The Triton kernel of anemoi-models' graph transformer, written for version 0.19.0.

Features of edges, which it adds to keys and values, are 0 here.
"""

from __future__ import annotations

from torch import Tensor

from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, edge_index: Tensor) -> Tensor:
    from anemoi.models.triton.gt import graph_transformer_attention_conv
    from anemoi.models.triton.utils import edge_index_to_csc
    of_queries, _, of_keys = edge_index_to_csc(edge_index, (key.size(0), query.size(0)))
    features = query.new_zeros(edge_index.size(1), *query.shape[1:])
    return graph_transformer_attention_conv(query, key, value, features, of_queries, of_keys)


SUPPORTS = Supports(dtypes=DTYPES[1:], rectangular=True, empty_rows=True, strides=True,
                    limits={'repeated edges': 'edges are a multiset'})
ADAPTERS = {'anemoi': Adapter(attention, 'anemoi.models.triton', SUPPORTS, form='edge_index',
                              layout='nhc', device='cuda')}
