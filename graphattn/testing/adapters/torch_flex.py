"""torch's FlexAttention, as it is and compiled. On CPUs it has no backward pass.

A sink takes its share afterwards, by the log-sum-exp that FlexAttention returns, as in
``flex_attention_forward`` of transformers. Compiled for CPUs it returns none.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, *,
              edge_bias: Tensor | None = None, edge_gate: Tensor | None = None,
              scale: float | None = None, softcap: float | None = None,
              sink: Tensor | None = None, attend=flex_attention) -> Tensor:
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor,
                  column: Tensor) -> Tensor:
        score = score if edge_gate is None else score * edge_gate[batch, head, row, column]
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        return score if edge_bias is None else score + edge_bias[batch, head, row, column]

    has_terms = any(term is not None for term in (edge_bias, edge_gate, softcap))
    out, aux = attend(query, key, value, score_mod if has_terms else None, block_mask, scale=scale,
                      enable_gqa=key.size(1) < query.size(1),
                      return_aux=AuxRequest(lse=sink is not None))
    if sink is None:
        return out
    least = torch.finfo(sink.dtype).min  # avoids -inf - -inf
    rest = (aux.lse - sink.clamp(min=least).view(1, -1, 1)).sigmoid().unsqueeze(-1)
    return (out * rest).to(out.dtype)


def compiled(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, *,
             edge_bias: Tensor | None = None, edge_gate: Tensor | None = None,
             scale: float | None = None, softcap: float | None = None,
             sink: Tensor | None = None) -> Tensor:
    torch.compiler.reset()
    return attention(query, key, value, block_mask, edge_bias=edge_bias, edge_gate=edge_gate,
                     scale=scale, softcap=softcap, sink=sink,
                     attend=torch.compile(flex_attention))


FORWARD = Supports(gradients=False, dtypes=DTYPES, bias=True, gate=True, scale=True,
                   softcap=True, sink=True, grouped_queries=True, value_channels=True,
                   rectangular=True, empty_rows=True, strides=True, deterministic=True,
                   limits={'nothing to attend to': 'without keys at all it raises an IndexError'})
FULL = Supports.everything(dtypes=DTYPES[1:], dropout=False, second_derivatives=False,
                           exact_logits=False, isolates_nan=False, compiles=False)
# A kernel is compiled for each case, in seconds.
FEW = ['scale', 'softcap', 'one head, many heads', 'grouped queries', 'sizes of logits']
ADAPTERS = {
    'torch_flex': Adapter(attention, 'torch', FORWARD, form='block_mask'),
    'torch_flex_compiled': Adapter(compiled, 'torch', replace(FORWARD, sink=False),
                                   form='block_mask',
                                   options={'checks': FEW, 'time_limit': 120.}),
    'torch_flex_cuda': Adapter(compiled, 'torch', FULL, form='block_mask', device='cuda',
                               options={'time_limit': 120.}),
}
