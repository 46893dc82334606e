"""Dense attention under a soft mask. Every pair of tokens of a sequence has a weight.

Sequences of the same length are computed together, without padding. The weights are one flat
tensor: for each length, the shortest first, ``[sequences, heads, length, length]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops.attention.sdpa import attend_to_segments
from graphattn.ops.backend import Backend, LogitTerms, everywhere
from graphattn.ops.edge_math import edge_logit


def attend(query: Tensor, key: Tensor, value: Tensor, pairs: MaskedPairs,
           terms: LogitTerms) -> Tensor:
    out = [query.new_empty(0, query.size(1), value.size(2)) + value[:0].sum()
           + _nothing(query, key, pairs)]
    for length, *segments in _segments(pairs, query, key, value):
        bias = _bias(pairs, length, query.dtype)[0].to(query.dtype)
        out.append(_tokens(attend_to_segments(*segments, bias, scale=terms.scale,
                                              dropout_p=terms.dropout_p)))
    return pairs.unsort(torch.cat(out))


def attention_weights(query: Tensor, key: Tensor, pairs: MaskedPairs, terms: LogitTerms) -> Tensor:
    weight = [query.new_empty(0) + _nothing(query, key, pairs)]
    for length, own_query, own_key in _segments(pairs, query, key):
        bias, highest = _bias(pairs, length, query.dtype)
        logit = edge_logit(own_query @ own_key.mT, terms._replace(bias=bias.to(query.dtype)))
        if terms.sink is not None:
            sink = (terms.sink.view(-1, 1, 1) - highest).to(logit.dtype)
            logit = torch.cat([logit, sink.expand(*logit.shape[:3], 1)], dim=-1)
        weight.append(logit.softmax(dim=-1)[..., :length].flatten())
    return torch.cat(weight)


def multiplied_weights(query: Tensor, key: Tensor, pairs: MaskedPairs,
                       terms: LogitTerms) -> Tensor:
    """Return the weights of all pairs without a mask, times the mask."""
    is_on = PairMask(torch.ones_like(pairs.mask.values), pairs.mask.layout)
    weight = attention_weights(query, key, MaskedPairs(is_on, pairs.ptr), terms)
    mask = [pairs.mask.dense(length).expand(count, -1, -1, -1).flatten()
            for length, count in pairs.counts]
    return weight * torch.cat([weight[:0], *mask]).to(weight.dtype)


def weighted_sum(weight: Tensor, value: Tensor, pairs: MaskedPairs) -> Tensor:
    out, begin = [value[:0] + weight[:0].sum()], 0
    for length, own in _segments(pairs, value):
        shape = torch.Size([*own.shape[:2], length, length])
        end = begin + shape.numel()
        out.append(_tokens(weight[begin:end].view(shape) @ own))
        begin = end
    return pairs.unsort(torch.cat(out))


def _segments(pairs: MaskedPairs, *tensors: Tensor) -> Iterator[tuple]:
    """Yield each length, and of each tensor its ``[sequences, heads, length, channels]``."""
    sizes = [length * count for length, count in pairs.counts]
    parts = zip(*(pairs.sort(x).split(sizes) for x in tensors))
    for (length, count), own in zip(pairs.counts, parts):
        yield length, *(x.reshape(count, length, *x.shape[1:]).transpose(1, 2) for x in own)


def _tokens(segments: Tensor) -> Tensor:
    return segments.transpose(1, 2).flatten(0, 1)


def _bias(pairs: MaskedPairs, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    bias = pairs.mask.bias(length)
    bias = bias.to(torch.promote_types(bias.dtype, dtype))
    # Subtracting the maximum changes no weight, and avoids the rounding errors of large logits.
    highest = bias.detach().amax(dim=-1, keepdim=True)
    return bias - highest, highest


def _nothing(query: Tensor, key: Tensor, pairs: MaskedPairs) -> Tensor:
    # for outputs, so that all inputs get gradients even if there are no pairs
    return sum(x[:0].sum() for x in (query, key, pairs.mask.values))


BACKEND = Backend('pairs', everywhere, attention=attend, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, supports_gqa=True, takes_softcap=False,
                  takes_sink=False, nan_leaks=True)
MULTIPLIED = replace(BACKEND, attention=None, attention_weights=multiplied_weights)
