"""``Attend`` of x-transformers, plain and through torch's SDPA."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              edge_bias: Tensor | None = None, scale: float | None = None,
              softcap: float | None = None, sink: Tensor | None = None, dropout_p: float = 0.,
              flash: bool = False) -> Tensor:
    from x_transformers.attend import Attend
    clamp = {} if softcap is None else {'softclamp_logits': True, 'logit_softclamp_value': softcap}
    attend = Attend(heads=query.size(1), scale=scale, dropout=dropout_p, flash=flash,
                    head_learned_sink=sink is not None, **clamp)
    if sink is not None:
        del attend.head_attn_sink  # a parameter
        attend.head_attn_sink = sink
    out, _ = attend(query, key, value, mask=mask[None, None], attn_bias=edge_bias)
    return out


SUPPORTS = Supports(dtypes=DTYPES, bias=True, scale=True, grouped_queries=True,
                    value_channels=True, rectangular=True, empty_rows=True, strides=True,
                    dropout=True, deterministic=True,
                    limits={'double precision': 'the softmax is computed in float32'})
WITH_TERMS = replace(SUPPORTS, softcap=True, sink=True, limits={
    **SUPPORTS.limits, 'softcap': 'the bias is bounded too'})
ADAPTERS = {'x_transformers': Adapter(attention, 'x_transformers', WITH_TERMS),
            'x_transformers_flash': Adapter(partial(attention, flash=True), 'x_transformers',
                                            SUPPORTS)}
