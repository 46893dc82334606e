"""Dense attention by torch's ``scaled_dot_product_attention``, for nearly complete graphs.

Masks are built chunk by chunk, ``PAIRS_PER_CHUNK`` pairs at most. Masked pairs are multiplied too,
so a non-finite key or value reaches every query of its segment, and a non-finite query the
gradients of every key.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphattn._tensors import host_copy, is_traced
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import Backend, LogitTerms, has_values
from graphattn.ops.edge_math import no_second_derivative

try:
    from torch.nn.attention.varlen import varlen_attn
    TAKES_RAGGED = 'scale' in inspect.signature(varlen_attn).parameters  # not in older versions
except ImportError:
    TAKES_RAGGED = False

PAIRS_PER_CHUNK = 2**24
_MAX_RAGGED_CHANNELS = 256  # of torch's attention along segments of any length
MAX_LOGIT = 2**12  # up to which rounding errors of gradients are accepted


def attend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
           terms: LogitTerms) -> Tensor:
    edge_bias = terms.bias
    is_full = graph.num_edges == graph.num_pairs and edge_bias is None
    if is_full and graph.num_segments == 1 and graph.num_keys > 0:  # without reading sizes
        return _attend_to_all(query, key, value, 1, terms)
    if is_full and takes_one_call(query, value, graph, terms):
        ptrs = [ptr.to(torch.int32) for ptr in graph.segments.ptrs]
        return varlen_attn(query, key, value, *ptrs, *map(max, zip(*graph.segments.shapes)),
                           scale=terms.scale)
    # Zero-size term that keeps every input in the autograd graph when there are no pairs.
    arguments = [x for x in (query, key, value, edge_bias) if x is not None]
    nothing = sum(x[:0].sum() for x in arguments)
    shape = (0, query.size(1), value.size(2))
    out = [value.new_empty(shape) + nothing]
    chunks, num_columns = _chunks(graph, is_full)
    # One split, because the gradient of each slice would have the size of the whole tensor.
    keys, values = key.split(num_columns), value.split(num_columns)
    queries = query.split([len(chunk.rows) for chunk in chunks])
    masks = repeat(None) if is_full else _masks(graph, chunks, edge_bias)
    for chunk, own, mask in zip(chunks, queries, masks):
        if len(chunk.columns) == 0:
            out.append(value.new_zeros(len(own), *shape[1:]) + nothing)
        else:
            out.append(_attend_to_all(own, keys[chunk.run], values[chunk.run], chunk.num_segments,
                                      terms, mask))
    return torch.cat(out)


def takes_one_call(query: Tensor, value: Tensor, graph: BipartiteGraph, terms: LogitTerms) -> bool:
    """Return whether one call of torch computes all segments of a complete graph."""
    return (TAKES_RAGGED and query.device.type == 'cuda' and query.itemsize == 2
            and terms.dropout_p == 0 and query.shape[1:] == value.shape[1:]
            and query.size(2) <= _MAX_RAGGED_CHANNELS and query.size(2) % 8 == 0
            and all(map(min, graph.segments.shapes)))


def _attend_to_all(query: Tensor, key: Tensor, value: Tensor, num_segments: int, terms: LogitTerms,
                   mask: Tensor | None = None) -> Tensor:
    # all segments have as many queries and as many keys; mask: of _masks
    segments = [x.reshape(num_segments, x.size(0) // num_segments, *x.shape[1:]).transpose(1, 2)
                for x in (query, key, value)]  # Tensor.unflatten takes four times as long
    attended = attend_to_segments(*segments, mask, scale=terms.scale, dropout_p=terms.dropout_p)
    if not is_traced(attended) and attended.requires_grad:
        node = attended.grad_fn
        if node.name().startswith('ScaledDotProduct'):
            node.register_hook(_without_derivative)  # fused kernels have no second derivatives
    return attended.transpose(1, 2).flatten(0, 1)


def attend_to_segments(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *,
                       scale: float, dropout_p: float) -> Tensor:
    """Return torch's attention inside segments ``[segments, heads, tokens, channels]``."""
    # torch's fused backward pass recomputes weights from logits minus their log-sum-exp, with the
    # rounding error of the logits: 5e-4 of a weight in float32 at MAX_LOGIT. If logits may be
    # larger, a slower kernel stores the weights.
    may_round = torch.is_grad_enabled() or query.dtype.itemsize < 4
    keeps_weights = may_round and _may_be_large(query, key, scale)
    with sdpa_kernel(SDPBackend.MATH) if keeps_weights else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask,
                                              dropout_p=dropout_p, scale=scale,
                                              enable_gqa=key.size(1) < query.size(1))


def _without_derivative(grads: tuple[Tensor | None, ...], _) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if grad is None else _Last.apply(grad) for grad in grads)


class _Last(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise no_second_derivative('sdpa')


def _may_be_large(query: Tensor, key: Tensor, scale: float) -> bool:
    if query.numel() == 0 or key.numel() == 0 or is_traced(query, key):
        return False
    if query.device.type != 'cpu':  # reading values would synchronise the device on each call
        return False
    return query.size(-1) * _max_abs(query) * _max_abs(key) * abs(scale) > MAX_LOGIT


def _max_abs(x: Tensor) -> float:
    lowest, highest = x.detach().aminmax()
    return max(-lowest.item(), highest.item())


class _Chunk(NamedTuple):
    """Range of queries that one call of torch computes: of equal segments, or of one long one."""

    run: int  # number of the group of segments, which has one tensor of keys
    num_segments: int
    rows: range  # queries of the chunk
    columns: range  # keys of its segments


def _chunks(graph: BipartiteGraph, is_full: bool) -> tuple[list[_Chunk], list[int]]:
    # is_full: all keys are attended to, so no masks are needed and no large segment is split. A run
    # is a group of equal adjacent segments, or one large one that is split into chunks.
    shapes = graph.segments.shapes
    chunks, columns_of_run, segment, row, column = [], [], 0, 0, 0
    while segment < graph.num_segments:
        num_rows, num_columns = shapes[segment]
        most = max(1, PAIRS_PER_CHUNK // max(1, num_rows * num_columns))
        last = segment + 1
        while last < min(graph.num_segments, segment + most) and shapes[last] == shapes[segment]:
            last += 1
        num_segments, segment = last - segment, last
        rows = range(row, row + num_rows * num_segments)
        columns = range(column, column + num_columns * num_segments)
        cuts = num_segments == 1 and not is_full
        step = max(1, PAIRS_PER_CHUNK // max(1, num_columns) if cuts else len(rows))
        chunks += [_Chunk(len(columns_of_run), num_segments, rows[first:first + step], columns)
                   for first in range(0, len(rows), step)]
        columns_of_run.append(len(columns))
        row, column = rows.stop, columns.stop
    return chunks, columns_of_run


def _masks(graph: BipartiteGraph, chunks: list[_Chunk],
           edge_bias: Tensor | None) -> Iterator[Tensor | None]:
    """Yield bool masks ``[sequences, 1, queries, keys]``, or a bias minus its maximum and -inf."""
    bounds = [0, *(chunk.rows.stop for chunk in chunks)]
    num_edges = host_copy(graph.csr[0])[bounds].diff().tolist()
    biases = repeat(None) if edge_bias is None else edge_bias.split(num_edges)
    for chunk, query, key, bias in zip(chunks, graph.query.split(num_edges),
                                       graph.key.split(num_edges), biases):
        # no mask for a chunk without keys
        yield None if len(chunk.columns) == 0 else _mask(
            query - chunk.rows.start, key - chunk.columns.start, bias, chunk.num_segments,
            (len(chunk.rows) // chunk.num_segments, len(chunk.columns) // chunk.num_segments))


def _mask(row: Tensor, key: Tensor, bias: Tensor | None, num_segments: int,
          segment_shape: tuple[int, int]) -> Tensor:
    num_rows, num_columns = segment_shape
    segment = row.div(max(1, num_rows), rounding_mode='floor')
    at = segment, row - segment * num_rows, key - segment * num_columns
    shape = num_segments, num_rows, num_columns
    if bias is None:
        mask = torch.zeros(shape, dtype=torch.bool, device=row.device)
        mask[at] = True
        return mask.unsqueeze(1)
    of_pairs = bias.new_full((*shape, bias.size(1)), -torch.inf)
    of_pairs = of_pairs.index_put(at, bias).permute(0, 3, 1, 2)
    # Subtracting the maximum of each query changes no weight, but reduces the rounding error of
    # torch's backward pass, which recomputes weights from logits minus their log-sum-exp.
    highest = of_pairs.detach().amax(dim=-1, keepdim=True)
    return of_pairs - highest.masked_fill(highest == -torch.inf, 0.)


BACKEND = Backend('sdpa', has_values, attention=attend, supports_gqa=True, takes_gate=False,
                  takes_softcap=False, takes_sink=False, nan_leaks=True)
