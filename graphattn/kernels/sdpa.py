"""Dense attention by torch's ``scaled_dot_product_attention``, for graphs that are nearly full.

Complete graphs need no mask. Others get theirs chunk by chunk, so that no more than
``PAIRS_PER_CHUNK`` pairs are ever held. Masked pairs are multiplied as well: a key or value that
is not finite reaches every query of its block, and a query every key's gradient. It takes no gates
and forms no weights.

torch's fused backward pass makes weights of logits less their log-sum-exp, and so rounds them by
the size of the logits. Above ``LARGEST_LOGIT``, which is 5e-4 of a weight in float32, weights are
formed and kept instead: on a CPU, for a GPU would have to be waited for to look at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphattn._tensors import is_traced, on_cpu
from graphattn.graph import BipartiteGraph
from graphattn.kernels.backend import Backend, LogitTerms, where_numbers_are
from graphattn.kernels.edge_math import no_second_derivative

PAIRS_PER_CHUNK = 2**24
LARGEST_LOGIT = 2**12  # whose rounding may pass into gradients


def attend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
           terms: LogitTerms) -> Tensor:
    edge_bias = terms.bias
    is_full = graph.num_edges == graph.num_pairs and edge_bias is None
    if is_full and graph.num_blocks == 1 and graph.num_keys > 0:  # nothing to look up
        return _attend_to_all(query, key, value, 1, terms)
    # Empty, but joined to every argument, should there be nothing to attend to.
    arguments = [x for x in (query, key, value, edge_bias) if x is not None]
    nothing = sum(x[:0].sum() for x in arguments)
    shape = (0, query.size(1), value.size(2))
    out = [value.new_empty(shape) + nothing]
    edge_index = None if is_full else (graph.key, graph.query)
    for rows, columns, num_blocks in _chunks(graph, is_full):
        if columns.start == columns.stop:
            out.append(value.new_zeros(rows.stop - rows.start, *shape[1:]) + nothing)
            continue
        mask = None if is_full else _mask(graph, edge_index, rows, columns, num_blocks, edge_bias)
        out.append(_attend_to_all(query[rows], key[columns], value[columns], num_blocks, terms,
                                  mask))
    return torch.cat(out)


def _attend_to_all(query: Tensor, key: Tensor, value: Tensor, num_blocks: int, terms: LogitTerms,
                   mask: Tensor | None = None) -> Tensor:
    """Every query to every key of its block, but for those that the mask takes away."""
    blocks = [x.reshape(num_blocks, x.size(0) // num_blocks, *x.shape[1:]).transpose(1, 2)
              for x in (query, key, value)]  # Tensor.unflatten takes four times as long
    may_round = torch.is_grad_enabled() or query.dtype.itemsize < 4
    keeps_weights = may_round and _may_be_large(query, key, terms.scale)
    with sdpa_kernel(SDPBackend.MATH) if keeps_weights else nullcontext():
        attended = F.scaled_dot_product_attention(
            *blocks, attn_mask=mask, dropout_p=terms.dropout_p, scale=terms.scale,
            enable_gqa=key.size(1) < query.size(1))
    if not is_traced(attended) and attended.requires_grad:
        _refuse_second_derivative(attended.grad_fn)
    return attended.transpose(1, 2).flatten(0, 1)


def _refuse_second_derivative(attention: Node) -> None:
    """In words of our own, where torch has none: of its fused kernels."""
    if attention.name().startswith('ScaledDotProduct'):
        attention.register_hook(_without_derivative)


def _without_derivative(grads: tuple[Tensor | None, ...], _) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if grad is None else _Last.apply(grad) for grad in grads)


class _Last(torch.autograd.Function):
    """A gradient that has none itself."""

    @staticmethod
    def forward(ctx, grad: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise no_second_derivative('sdpa')


def _may_be_large(query: Tensor, key: Tensor, scale: float) -> bool:
    """Whether a logit may be larger than ``LARGEST_LOGIT``, by the largest numbers in vectors."""
    if query.numel() == 0 or key.numel() == 0 or is_traced(query, key):
        return False
    if query.device.type != 'cpu':  # to look takes waiting for the device, each time
        return False
    return query.size(-1) * _largest(query) * _largest(key) * abs(scale) > LARGEST_LOGIT


def _largest(x: Tensor) -> float:
    lowest, highest = x.detach().aminmax()
    return max(-lowest.item(), highest.item())


def _chunks(graph: BipartiteGraph, is_full: bool) -> Iterator[tuple[slice, slice, int]]:
    """Queries and keys of consecutive blocks of one shape, or of some rows of a large block."""
    ptrs = [on_cpu(ptr) for ptr in graph.blocks.ptrs]
    query_ptr, key_ptr = (ptr.tolist() for ptr in ptrs)
    shapes = list(zip(*(ptr.diff().tolist() for ptr in ptrs)))
    block = 0
    while block < graph.num_blocks:
        num_rows, num_columns = shapes[block]
        most = max(1, PAIRS_PER_CHUNK // max(1, num_rows * num_columns))
        last = block + 1
        while last < min(graph.num_blocks, block + most) and shapes[last] == shapes[block]:
            last += 1
        step = num_rows if is_full else min(num_rows, PAIRS_PER_CHUNK // max(1, num_columns))
        step = max(1, (last - block) * num_rows if last - block > 1 else step)
        columns = slice(key_ptr[block], key_ptr[last])
        for start in range(query_ptr[block], query_ptr[last], step):
            yield slice(start, min(start + step, query_ptr[last])), columns, last - block
        block = last


def _mask(graph: BipartiteGraph, edge_index: tuple[Tensor, Tensor], rows: slice, columns: slice,
          num_blocks: int, edge_bias: Tensor | None) -> Tensor:
    """Boolean ``[blocks, 1, rows, columns]``, or what the bias of each pair is below the highest of
    its query, ``-inf`` where there is no edge."""
    (edge_key, query), indptr = edge_index, on_cpu(graph.csr[0])
    edges = slice(*indptr[[rows.start, rows.stop]].tolist())
    num_rows = (rows.stop - rows.start) // num_blocks
    num_columns = (columns.stop - columns.start) // num_blocks
    row, key = query[edges] - rows.start, edge_key[edges] - columns.start
    block = row.div(max(1, num_rows), rounding_mode='floor')
    at = block, row - block * num_rows, key - block * num_columns
    shape = num_blocks, num_rows, num_columns
    if edge_bias is None:
        mask = torch.zeros(shape, dtype=torch.bool, device=graph.device)
        mask[at] = True
        return mask.unsqueeze(1)
    bias = edge_bias.new_full((*shape, edge_bias.size(1)), -torch.inf)
    bias = bias.index_put(at, edge_bias[edges]).permute(0, 3, 1, 2)
    # Less the highest of each query, which changes no weight: torch's backward pass makes weights
    # of logits less their log-sum-exp, whose rounding is that of the largest logit.
    highest = bias.detach().amax(dim=-1, keepdim=True)
    return bias - highest.masked_fill(highest == -torch.inf, 0.)


BACKEND = Backend('sdpa', where_numbers_are, attention=attend, shares_keys=True, takes_gate=False,
                  spreads_nan=True)
