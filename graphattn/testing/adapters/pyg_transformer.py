"""PyG's ``TransformerConv`` with projections that are the identity."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import Supports


def attention(query: Tensor, key: Tensor, value: Tensor, edge_index: Tensor, *,
              dropout_p: float = 0.) -> Tensor:
    from torch_geometric.nn import TransformerConv
    _, heads, channels = query.shape
    conv = TransformerConv(heads * channels, channels, heads, dropout=dropout_p, root_weight=False,
                           bias=False)
    conv.lin_query, conv.lin_key, conv.lin_value = (_Given(x) for x in (query, key, value))
    out = conv((key.flatten(1), query.flatten(1)), edge_index)
    return out.view(-1, heads, channels)


class _Given(torch.nn.Module):
    def __init__(self, result: Tensor):
        super().__init__()
        self.result = result

    def forward(self, x: Tensor) -> Tensor:
        return self.result.flatten(1)


SUPPORTS = Supports.everything(bias=False, gate=False, scale=False, softcap=False, sink=False,
                               grouped_queries=False,
                               value_channels=False, exact_logits=False, compiles=False, limits={
                                   'repeated edges': 'edges are a multiset in PyG',
                                   'half precision': 'logits are rounded to half precision',
                                   'nothing to attend to': 'the same, in bfloat16'})
ADAPTERS = {'pyg_transformer': Adapter(attention, 'torch_geometric', SUPPORTS, form='edge_index',
                                       layout='nhc')}
