"""Attention by torch's FlexAttention. Tensor cores multiply every tile of 128 x 128 pairs that
contains an edge.

On CUDA, torch compiles the kernels. On CPUs and in float64, the dense definition in this file runs
instead. It computes all pairs of queries and keys, so it is slow.

On CUDA, the backward pass recomputes weights from logits minus their log-sum-exp, with the rounding
error of the logits: in float32 and at a logit of 10,000, a thousandth of a weight.

Masked pairs of a tile are multiplied too, so a non-finite key or value reaches every query of its
tiles. Returned weights and dropout are not supported. In half precision, weights are rounded before
they multiply values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import Backend, LogitTerms
from graphattn.ops.edge_math import highest_logit, with_first_derivative

MIN_CHANNELS = 16  # of a head, for tensor cores
MAX_KERNELS = 64  # of a process: the limit of torch's recompilations


@torch.compiler.disable  # the tiles depend on values
def attend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
           terms: LogitTerms) -> Tensor:
    if graph.num_edges == 0:
        return _zeros(query, key, value, terms)
    heads = [x.transpose(0, 1).unsqueeze(0) for x in (query, key, value)]
    on_edges, sink = _on_edges(graph, terms, query)
    changes_logits = terms.softcap is not None or any(x is not None for x in on_edges)
    score_mod = _score_mod(graph, terms.softcap) if changes_logits else None
    arguments = graph.block_mask, score_mod, on_edges, terms.scale, sink
    if query.is_cuda and query.dtype != torch.double:
        heads = [F.pad(x, (0, max(0, MIN_CHANNELS - x.size(-1)))) for x in heads]
        with torch._dynamo.config.patch(recompile_limit=MAX_KERNELS):
            out = _compiled()(*heads, *arguments)[..., :value.size(-1)]
    else:
        out = by_definition(*heads, *arguments)
    return with_first_derivative(out.squeeze(0).transpose(0, 1), 'flex')


def _zeros(query: Tensor, key: Tensor, value: Tensor, terms: LogitTerms) -> Tensor:
    """Return the output for a graph without edges: zeros that depend on every argument, so that all
    arguments get gradients."""
    arguments = [x for x in (query, key, value, terms.bias, terms.gate, terms.sink)
                 if x is not None]
    out = value.new_zeros(query.size(0), query.size(1), value.size(2))
    return out + sum(x[:0].sum() for x in arguments).to(out)


def by_definition(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask,
                  score_mod: Callable[..., Tensor] | None,
                  on_edges: tuple[Tensor | None, Tensor | None], scale: float,
                  sink: Tensor | None) -> Tensor:
    """Return attention along the edges of ``block_mask``, ``[1, heads, num_queries, channels]``,
    computed on all pairs.

    This function replaces ``flex_attention`` in float64 and on CPUs, where ``flex_attention`` has
    no gradients. It stores the weights. Torch's own definition recomputes them in the backward
    pass, from logits minus their log-sum-exp, so weights get the rounding error of the logits.

    Args:
        query, key, value (Tensor): ``[1, heads, nodes, channels]``. Keys and values may have fewer
            heads.
        block_mask (BlockMask): The edges.
        score_mod (Callable, optional): Changes logits, as the result of :func:`_score_mod` does.
        on_edges (tuple): The gate and the bias of edges, which are the last arguments of
            ``score_mod``.
        scale (float): Factor of the dot products.
        sink (Tensor, optional): One more logit of each query, ``[num_queries or 1, heads]``.
    """
    dtype, of_group = torch.promote_types(query.dtype, torch.float), query.size(1) // key.size(1)
    key, value = (x.repeat_interleave(of_group, dim=1) for x in (key, value))
    sizes = query.size(1), query.size(2), key.size(2)
    pairs = torch.meshgrid(*(torch.arange(size, device=query.device) for size in sizes),
                           indexing='ij')
    sequence = torch.zeros_like(pairs[0])
    logit = (query.to(dtype) @ key.to(dtype).mT * scale).squeeze(0)
    logit = score_mod(logit, sequence, *pairs, *on_edges) if score_mod else logit
    logit = logit.masked_fill(~block_mask.mask_mod(sequence, *pairs), -torch.inf)
    if sink is not None:
        sink = sink.to(dtype).expand(sizes[1], sizes[0]).t().unsqueeze(-1)
        logit = torch.cat([logit, sink], dim=-1)
    is_empty = logit.detach().amax(dim=-1, keepdim=True) == -torch.inf
    weight = logit.masked_fill(is_empty, 0.).softmax(dim=-1).masked_fill(is_empty, 0.)
    return weight[..., :sizes[2]].to(value.dtype) @ value


def by_tiles(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask,
             score_mod: Callable[..., Tensor] | None,
             on_edges: tuple[Tensor | None, Tensor | None], scale: float,
             sink: Tensor | None) -> Tensor:
    def changed(*logit_and_pair: Tensor) -> Tensor:
        return score_mod(*logit_and_pair, *on_edges)

    out, aux = flex_attention(query, key, value, changed if score_mod else None, block_mask, scale,
                              enable_gqa=key.size(1) < query.size(1),
                              return_aux=AuxRequest(lse=sink is not None))
    if sink is None:
        return out
    least = torch.finfo(sink.dtype).min  # avoids -inf - -inf
    rest = (aux.lse - sink.clamp(min=least).t()).sigmoid().unsqueeze(-1)
    return (out * rest).to(out.dtype)


@cache
def _compiled() -> Callable[..., Tensor]:
    """Return :func:`by_tiles` compiled by ``torch.compile``. The uncompiled function would compute
    all pairs.

    Sizes that differ between calls become variables of the kernels. ``dynamic=True`` would make the
    size of tiles a variable too. This would be slow, because the kernels divide by it for every
    pair.
    """
    return torch.compile(by_tiles, fullgraph=True)


def _on_edges(graph: BipartiteGraph, terms: LogitTerms, query: Tensor,
              ) -> tuple[tuple[Tensor | None, Tensor | None], Tensor | None]:
    """Return gate, bias and sinks as FlexAttention needs them: a tuple of the gate and the bias,
    ``[num_edges, heads]`` each, and the sinks, ``[num_queries or 1, heads]``. What ``terms`` lacks
    is None. The maximum bias of each query is subtracted from its biases and its sink."""
    dtype, shape = torch.promote_types(query.dtype, torch.float), (-1, query.size(1))
    gate, bias, sink = terms.gate, terms.bias, terms.sink
    if gate is not None:
        gate = gate.to(dtype).expand(shape)
    if bias is not None:
        # Subtracting the maximum of each query changes no weight, but reduces the rounding error of
        # the backward pass, which recomputes weights from logits minus their log-sum-exp.
        bias, of_edge = bias.to(dtype), graph.query
        highest = highest_logit(bias, of_edge, graph.num_queries)
        highest = highest.masked_fill(highest == -torch.inf, 0.)
        bias = (bias - highest[of_edge]).expand(shape)
        sink = None if sink is None else sink - highest
    return (gate, bias), sink


def _score_mod(graph: BipartiteGraph, softcap: float | None) -> Callable[..., Tensor]:
    """Return the ``score_mod`` of FlexAttention, which applies gate, softcap and bias to the logit
    of a pair."""
    edge_of = _edge_of_pair(graph)

    def score_mod(logit: Tensor, sequence: Tensor, head: Tensor, query: Tensor, key: Tensor,
                  gate: Tensor | None, bias: Tensor | None) -> Tensor:
        edge = None if gate is bias is None else edge_of(query, key)
        if gate is not None:
            logit = logit * gate[edge, head]
        if softcap is not None:
            logit = softcap * torch.tanh(logit / softcap)
        return logit if bias is None else logit + bias[edge, head]

    return score_mod


def _edge_of_pair(graph: BipartiteGraph) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from a query and a key to the index of the edge between them, found by
    bisection. If there is no such edge, the function returns an arbitrary edge."""
    indptr, edge_key = graph.indptr, graph.key
    longest = int(indptr.diff().max())
    # The number of steps is rounded up to a multiple of 4, so that graphs with rows of similar
    # length share a kernel.
    num_steps = -(-(longest - 1).bit_length() // 4) * 4

    def edge_of_pair(query: Tensor, key: Tensor) -> Tensor:
        high = (indptr[query + 1] - 1).clamp(min=0)
        low = torch.minimum(indptr[query], high)
        for _ in range(num_steps):
            middle = (low + high + 1) // 2
            is_beyond = edge_key[middle] > key
            low = torch.where(is_beyond, low, middle)
            high = torch.where(is_beyond, middle - 1, high)
        return low

    return edge_of_pair


def is_available(device: torch.device) -> bool:
    return device.type in ('cpu', 'cuda')


BACKEND = Backend('flex', is_available, attention=attend, supports_gqa=True, takes_dropout=False,
                  nan_leaks=True)
