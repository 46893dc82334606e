"""Declarations of what an attention function supports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from graphattn.testing.case import Case

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class Supports:
    """Declare what an attention function supports.

    With arguments that are declared, the function must return the right result. With other
    arguments, it may also raise an error. Properties (the last four flags) are checked only if they
    are declared.

    Args:
        dtypes (Collection[torch.dtype]): dtypes of query, key and value.
        channels (Collection[int], optional): Widths of heads; any if omitted.
        gradients (bool): A backward pass.
        bias (bool): A value of each edge and head, added to the logit.
        gate (bool): A value of each edge and head that multiplies the scaled dot product.
        scale (bool): Another scale than 1 / sqrt(channels).
        softcap (bool): A bound c on the size of the scaled and gated dot products x, which become
            c tanh(x / c).
        sink (bool): One more logit of each head in the softmax of every query, without a value.
        grouped_queries (bool): Fewer heads of keys and values than of queries.
        value_channels (bool): Another number of channels in values than in keys.
        rectangular (bool): Another number of keys than of queries.
        empty_rows (bool): Queries without keys, whose outputs are 0.
        strides (bool): Tensors that are not contiguous.
        dropout (bool): Dropout of weights.
        second_derivatives (bool): Gradients of gradients.
        deterministic (bool): The same call gives the same bits.
        exact_logits (bool): Large logits that float32 represents exactly get exact weights, in the
            backward pass too.
        isolates_nan (bool): NaN and infinity in a key or value reach only queries with an edge to
            it.
        compiles (bool): ``torch.compile`` traces the function without a break.
        limits (Mapping[str, str]): Known limits: names of checks that are known to fail, and
            why. Their failures are reported as limits.
    """

    dtypes: Collection[torch.dtype] = (torch.float32,)
    channels: Collection[int] | None = None
    gradients: bool = True
    bias: bool = False
    gate: bool = False
    scale: bool = False
    softcap: bool = False
    sink: bool = False
    grouped_queries: bool = False
    value_channels: bool = False
    rectangular: bool = False
    empty_rows: bool = False
    strides: bool = False
    dropout: bool = False
    second_derivatives: bool = False
    deterministic: bool = False
    exact_logits: bool = False
    isolates_nan: bool = False
    compiles: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def everything(cls, **except_for: Any) -> Supports:
        """Return a declaration that everything is supported, with all dtypes. ``except_for`` sets
        other values for fields."""
        flags = {name: True for name, kind in cls.__annotations__.items() if kind == 'bool'}
        return cls(**{'dtypes': DTYPES, **flags, **except_for})

    def lacks(self, case: Case) -> set[str]:
        """Return the names of the features that the test case ``case`` needs but that are not
        declared as supported."""
        needs = {'dtypes': case.dtype not in self.dtypes,
                 'channels': self.channels is not None and case.channels not in self.channels,
                 'bias': 'edge_bias' in case.tensors, 'gate': 'edge_gate' in case.tensors,
                 'scale': case.scale is not None, 'softcap': case.softcap is not None,
                 'sink': 'sink' in case.tensors,
                 'grouped_queries': case.heads != case.kv_heads,
                 'value_channels': case.channels != case.value_channels,
                 'rectangular': not case.graph.is_square,
                 'empty_rows': case.has_empty_rows,
                 'strides': case.memory != 'contiguous', 'dropout': case.dropout_p > 0,
                 'second_derivatives': case.order > 1}
        return {name for name, needed in needs.items()
                if needed and (name in ('dtypes', 'channels') or not getattr(self, name))}
