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
from itertools import accumulate, repeat
from typing import NamedTuple

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
    groups = _groups(graph, is_full)
    # Cut at once, for the gradient of each slice would be as large as that of the whole.
    queries = iter(query.split([rows for group in groups for rows in group.chunks]))
    columns = [group.num_columns for group in groups]
    masks = repeat(None) if is_full else _masks(graph, groups, edge_bias)
    for group, keys, values in zip(groups, key.split(columns), value.split(columns)):
        for rows in group.chunks:
            own, mask = next(queries), next(masks)
            if group.num_columns == 0:
                out.append(value.new_zeros(rows, *shape[1:]) + nothing)
            else:
                out.append(_attend_to_all(own, keys, values, group.num_blocks, terms, mask))
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


class _Group(NamedTuple):
    """Consecutive blocks of one shape, whose queries attend all at once, or one large block."""

    num_blocks: int
    num_columns: int  # keys of all its blocks
    chunks: list[int]  # how many of its queries attend at a time


def _groups(graph: BipartiteGraph, is_full: bool) -> list[_Group]:
    shapes = list(zip(*(on_cpu(ptr).diff().tolist() for ptr in graph.blocks.ptrs)))
    groups, block = [], 0
    while block < graph.num_blocks:
        num_rows, num_columns = shapes[block]
        most = max(1, PAIRS_PER_CHUNK // max(1, num_rows * num_columns))
        last = block + 1
        while last < min(graph.num_blocks, block + most) and shapes[last] == shapes[block]:
            last += 1
        num_blocks, block = last - block, last
        step = num_rows * num_blocks
        if num_blocks == 1 and not is_full:
            step = min(step, PAIRS_PER_CHUNK // max(1, num_columns))
        starts = range(0, num_rows * num_blocks, max(1, step))
        groups.append(_Group(num_blocks, num_columns * num_blocks, [
            min(starts.step, starts.stop - start) for start in starts]))
    return groups


def _masks(graph: BipartiteGraph, groups: list[_Group],
           edge_bias: Tensor | None) -> Iterator[Tensor | None]:
    """The mask of each chunk: boolean ``[blocks, 1, rows, columns]``, or what the bias of each pair
    is below the highest of its query, ``-inf`` where there is no edge."""
    bounds = [0, *accumulate(rows for group in groups for rows in group.chunks)]
    num_edges = on_cpu(graph.csr[0])[bounds].diff().tolist()
    edges = zip(*(x.split(num_edges) for x in (graph.key, graph.query)), repeat(None)
                if edge_bias is None else edge_bias.split(num_edges), bounds)
    first_column = 0
    for group in groups:
        for rows in group.chunks:
            key, query, bias, first_row = next(edges)
            yield None if group.num_columns == 0 else _mask(
                query - first_row, key - first_column, bias, group.num_blocks,
                (rows // group.num_blocks, group.num_columns // group.num_blocks))
        first_column += group.num_columns


def _mask(row: Tensor, key: Tensor, bias: Tensor | None, num_blocks: int,
          block_shape: tuple[int, int]) -> Tensor:
    num_rows, num_columns = block_shape
    block = row.div(max(1, num_rows), rounding_mode='floor')
    at = block, row - block * num_rows, key - block * num_columns
    shape = num_blocks, num_rows, num_columns
    if bias is None:
        mask = torch.zeros(shape, dtype=torch.bool, device=row.device)
        mask[at] = True
        return mask.unsqueeze(1)
    of_pairs = bias.new_full((*shape, bias.size(1)), -torch.inf)
    of_pairs = of_pairs.index_put(at, bias).permute(0, 3, 1, 2)
    # Less the highest of each query, which changes no weight: torch's backward pass makes weights
    # of logits less their log-sum-exp, whose rounding is that of the largest logit.
    highest = of_pairs.detach().amax(dim=-1, keepdim=True)
    return of_pairs - highest.masked_fill(highest == -torch.inf, 0.)


BACKEND = Backend('sdpa', where_numbers_are, attention=attend, shares_keys=True, takes_gate=False,
                  spreads_nan=True)
