"""Attention that takes several hops, compiled by numba for CPUs: weights once, K sparse products.

Every sum belongs to one row of the graph or of its transpose, and so to one thread: results do not
depend on how many there are. Heads lie apart in memory, ``[heads, nodes, channels]``, so that the
values of one stay in the cache while its edges are followed.

A few heads go together, and what is as long as their edges serves the next ones too. Kept are one
log-sum-exp per token and head, and what every hop brought, hops x values. The backward pass goes
along the transposed graph, from queries to a key: it forms the weights once more, in that order,
and a gradient that it reads to carry it to the key is also multiplied by what the key had before
the hop, which is the gradient of the weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn._threads import run_calls
from graphattn.graph import BipartiteGraph
from graphattn.kernels.rows import (
    GRAIN,
    add_row,
    add_weighted,
    add_weighted_and_dots,
    claim,
    clear_row,
    copy_row,
    cut_into_spans,
    dot_of_rows,
    dots,
    exponentials,
    finish_and_claim,
    jit,
    jit_inline,
    keep,
    longest_row,
    modify,
    multiply_row,
    wait_for_all,
    whole_vectors,
)
from graphattn.kernels.vectors import exp


def attention_weights(
    query: Tensor,
    key: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    scale: float,
) -> Tensor:
    """Weights ``[num_edges, heads]`` of float32 at least, whose heads lie apart in memory."""
    by_key = _by_key(graph, query, key, edge_bias, edge_gate)
    return _weights(query, key, edge_bias, edge_gate, *graph.csr, *by_key, scale).t()


def attention_diffusion(weight: Tensor, value: Tensor, graph: BipartiteGraph,
                        teleport: Tensor) -> Tensor:
    by_key = _by_key(graph, weight, value, teleport)
    out, _ = _diffusion(weight.t().contiguous(), value, teleport, *graph.csr, *by_key,
                        by_key[0].numel() > 0)
    return out


def diffused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    teleport: Tensor,
    *,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """:func:`attention_diffusion` along :func:`attention_weights`, which are not kept."""
    by_key = _by_key(graph, query, key, value, edge_bias, edge_gate, teleport)
    seed = torch.randint(-2**63, 2**63 - 1, (1,)) if dropout_p > 0 else None
    out, *_ = _diffused(query, key, value, edge_bias, edge_gate, teleport, *graph.csr,
                        *by_key, seed, scale, dropout_p, by_key[0].numel() > 0)
    return out


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    """One hop on a square graph."""
    return attention_diffusion(weight, value, graph, weight.new_zeros(1, *value.shape[:2]))


def _by_key(graph: BipartiteGraph, *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed graph, which takes time and is for gradients only."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return graph.csc
    return (graph.indptr[:0],) * 3


# Operators ###########################################################################


@torch.library.custom_op('graphattn::attention_weights', mutates_args=(), device_types='cpu')
def _weights(
    query: Tensor, key: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    scale: float,
) -> Tensor:
    """Softmax of the logits over the keys of each query, ``[heads, num_edges]``."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    weight = query.new_empty(query.size(1), edge_key.numel(), dtype=accumulation_dtype(query))
    groups = _heads_at_once(*weight.shape)
    tables = _tables(groups, [query, key])
    for some in groups:
        logits = _Logits.of(some, tables, query, key, edge_bias, edge_gate, None, scale, 0.)
        logits.softmax(edges, weight[some])
    return weight


@_weights.register_fake
def _(query, key, edge_bias, edge_gate, indptr, edge_key, *_):
    return query.new_empty(query.size(1), edge_key.numel(), dtype=accumulation_dtype(query))


@torch.library.custom_op('graphattn::attention_weights_backward', mutates_args=(),
                         device_types='cpu')
def _weights_backward(
    grad: Tensor, weight: Tensor,
    query: Tensor, key: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    scale: float, needs_bias: bool, needs_gate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, bias and gate; the last two empty where not needed."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    gate_by_key = edges.sorted(edge_gate)
    grads = _LogitGrads.of(query, key, edge_bias, edge_gate, needs_bias, needs_gate)
    groups = _heads_at_once(*weight.shape)
    tables = _tables(groups, [query, key] * 2)
    for some in groups:
        logits = _Logits.of(some, tables[:2], query, key, None, gate_by_key, None, scale, 0.)
        change = weight[some] * grad[some]
        delta = torch.segment_reduce(change, 'sum', offsets=indptr.expand(len(change), -1), axis=1)
        by_key, lse = edges.by_key(weight[some]), delta  # for dropout alone, which is not at work
        grads.put(some, tables[2:], edges, logits, by_key, edges.by_key(grad[some]), delta, change,
                  lse)
    return tuple(grads)


@_weights_backward.register_fake
def _(grad, weight, query, key, edge_bias, edge_gate, indptr, edge_key, key_indptr, edge_query,
      position, scale, needs_bias, needs_gate):
    return tuple(_LogitGrads.of(query, key, edge_bias, edge_gate, needs_bias, needs_gate))


def _save_weights(ctx, inputs, output) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(output, *tensors)


def _differentiate_weights(ctx, grad):
    *_, needs_bias, needs_gate = ctx.needs_input_grad[:4]
    grad_query, grad_key, grad_bias, grad_gate = _weights_backward(
        grad, *ctx.saved_tensors, ctx.scale, needs_bias, needs_gate)
    return (grad_query, grad_key, grad_bias if needs_bias else None,
            grad_gate if needs_gate else None, *(None,) * 6)


_weights.register_autograd(_differentiate_weights, setup_context=_save_weights)


@torch.library.custom_op('graphattn::attention_diffusion', mutates_args=(), device_types='cpu')
def _diffusion(
    weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    keep_messages: bool,
) -> tuple[Tensor, Tensor]:
    """Output ``[nodes, heads, channels]`` and, if kept, what hops brought, ``[hops, heads, nodes,
    channels]``."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    out, messages = torch.empty_like(value), _empty_messages(value, teleport, keep_messages)
    groups = _heads_at_once(*weight.shape)
    tables = _tables(groups, [value] * 4)
    for some in groups:
        hops = _Hops.of(some, tables, value, teleport, messages)
        out[:, some] = hops.walk(edges, weight[some]).transpose(0, 1)
    return out, messages


@_diffusion.register_fake
def _(weight, value, teleport, *graph_and_keep):
    return torch.empty_like(value), _empty_messages(value, teleport, graph_and_keep[-1])


@torch.library.custom_op('graphattn::attention_diffusion_backward', mutates_args=(),
                         device_types='cpu')
def _diffusion_backward(
    grad_out: Tensor, messages: Tensor, weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    needs_weight: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of weight, value and teleport; empty where not needed."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    grad_weight = weight.new_empty(weight.shape if needs_weight else 0)
    grads = _HopGrads.of(value, teleport, needs_teleport)
    groups = _heads_at_once(*weight.shape)
    tables = _tables(groups, [value] * 5)
    for some in groups:
        hops, by_key = _Hops.of(some, tables, value, teleport, messages), edges.by_key(weight[some])
        dot = torch.empty_like(by_key) if needs_weight else by_key[:, :0]
        grads.put(some, edges, hops, grad_out, by_key, dot)
        if needs_weight:
            edges.to_query_order(dot, grad_weight[some])
    return grad_weight, *grads


@_diffusion_backward.register_fake
def _(grad_out, messages, weight, value, teleport, indptr, edge_key, key_indptr, edge_query,
      position, needs_weight, needs_teleport):
    return (weight.new_empty(weight.shape if needs_weight else 0),
            *_HopGrads.of(value, teleport, needs_teleport))


def _save_diffusion(ctx, inputs, output) -> None:
    *tensors, _ = inputs
    _, messages = output
    ctx.mark_non_differentiable(messages)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(messages, *tensors)


def _differentiate_diffusion(ctx, grad_out, _):
    nothing = (None,) * 6
    if grad_out is None:
        return None, None, None, *nothing
    needs_weight, _, needs_teleport = ctx.needs_input_grad[:3]
    grad_weight, grad_value, grad_teleport = _diffusion_backward(
        grad_out, *ctx.saved_tensors, needs_weight, needs_teleport)
    return (grad_weight if needs_weight else None, grad_value,
            grad_teleport if needs_teleport else None, *nothing)


_diffusion.register_autograd(_differentiate_diffusion, setup_context=_save_diffusion)


@torch.library.custom_op('graphattn::diffused_attention', mutates_args=(), device_types='cpu')
def _diffused(
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    seed: Tensor | None, scale: float, dropout_p: float, keep_messages: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp ``[heads, nodes]`` and, if kept, what hops brought."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    out, lse = torch.empty_like(value), _empty_lse(query)
    messages = _empty_messages(value, teleport, keep_messages)
    groups = _heads_at_once(query.size(1), edge_key.numel())
    *tables, weight = _tables(groups, [query, key] + [value] * 4, [edge_key])
    for some in groups:
        logits = _Logits.of(some, tables[:2], query, key, edge_bias, edge_gate, seed, scale,
                            dropout_p)
        hops = _Hops.of(some, tables[2:], value, teleport, messages)
        weight = weight[:len(logits.query)]
        lse[some] = logits.softmax(edges, weight)
        out[:, some] = hops.walk(edges, weight).transpose(0, 1)
    return out, lse, messages


@_diffused.register_fake
def _(query, key, value, edge_bias, edge_gate, teleport, *graph_and_rest):
    return (torch.empty_like(value), _empty_lse(query),
            _empty_messages(value, teleport, graph_and_rest[-1]))


@torch.library.custom_op('graphattn::diffused_attention_backward', mutates_args=(),
                         device_types='cpu')
def _diffused_backward(
    grad_out: Tensor, lse: Tensor, messages: Tensor,
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    seed: Tensor | None, scale: float, dropout_p: float,
    needs_weight: bool, needs_bias: bool, needs_gate: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, bias, gate, value and teleport; empty where not needed."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    bias_by_key, gate_by_key = edges.sorted(edge_bias), edges.sorted(edge_gate)
    logit_grads = _LogitGrads.of(query, key, edge_bias, edge_gate, needs_bias, needs_gate)
    hop_grads = _HopGrads.of(value, teleport, needs_teleport)
    groups = _heads_at_once(query.size(1), edge_key.numel())
    *tables, weight, dot, grad_logit = _tables(groups, [query, key] * 2 + [value] * 5,
                                               [edge_key] * 3)
    dot = dot if needs_weight else dot[:, :0]
    for some in groups:
        logits = _Logits.of(some, tables[:2], query, key, bias_by_key, gate_by_key, seed, scale,
                            dropout_p)
        hops = _Hops.of(some, tables[4:], value, teleport, messages)
        weight, dot, grad_logit = (x[:len(logits.query)] for x in (weight, dot, grad_logit))
        logits.softmax_by_key(edges, weight, lse[some])
        delta = hop_grads.put(some, edges, hops, grad_out, weight, dot)
        if needs_weight:
            logit_grads.put(some, tables[2:4], edges, logits, weight, dot, delta, grad_logit,
                            lse[some])
    return *logit_grads, *hop_grads


@_diffused_backward.register_fake
def _(grad_out, lse, messages, query, key, value, edge_bias, edge_gate, teleport, indptr, edge_key,
      key_indptr, edge_query, position, seed, scale, dropout_p, needs_weight, needs_bias,
      needs_gate, needs_teleport):
    return (*_LogitGrads.of(query, key, edge_bias, edge_gate, needs_bias, needs_gate),
            *_HopGrads.of(value, teleport, needs_teleport))


def _save_diffused(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.dropout_p, _ = inputs
    _, lse, messages = output
    ctx.mark_non_differentiable(lse, messages)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(lse, messages, *tensors)


def _differentiate_diffused(ctx, grad_out, *_):
    nothing = (None,) * 9
    if grad_out is None:
        return *(None,) * 6, *nothing
    needs_query, needs_key, _, needs_bias, needs_gate, needs_teleport = ctx.needs_input_grad[:6]
    needs_weight = needs_query or needs_key or needs_bias or needs_gate
    query, key, bias, gate, value, teleport = _diffused_backward(
        grad_out, *ctx.saved_tensors, ctx.scale, ctx.dropout_p, needs_weight, needs_bias,
        needs_gate, needs_teleport)
    return (query if needs_query else None, key if needs_key else None, value,
            bias if needs_bias else None, gate if needs_gate else None,
            teleport if needs_teleport else None, *nothing)


_diffused.register_autograd(_differentiate_diffused, setup_context=_save_diffused)


def _empty_lse(query: Tensor) -> Tensor:
    return query.new_empty(query.size(1), query.size(0), dtype=accumulation_dtype(query))


def _empty_messages(value: Tensor, teleport: Tensor, keep_messages: bool) -> Tensor:
    nodes, heads, channels = value.shape
    return value.new_empty(teleport.size(0) if keep_messages else 0, heads, nodes, channels,
                           dtype=accumulation_dtype(value))


# Passes over some heads ##############################################################


class _Edges(NamedTuple):
    """A graph and its transpose as the loops read them."""

    indptr: Tensor
    key: Tensor
    key_indptr: Tensor
    query: Tensor
    position: Tensor

    def run(self, kernel, *arguments, num_phases: int = 1) -> None:
        """``kernel`` on every query, in each of its phases."""
        _run(kernel, num_phases, self.indptr, *arguments, self.key)

    def run_by_key(self, kernel, *arguments, num_phases: int = 1) -> None:
        """``kernel`` on every key, in each of its phases."""
        _run(kernel, num_phases, self.key_indptr, *arguments, self.query)

    def by_key(self, weight: Tensor) -> Tensor:
        """``[heads, num_edges]`` in the order of the transposed graph."""
        by_key = torch.empty_like(weight, memory_format=torch.contiguous_format)
        _run(_to_key_order, 1, self.key_indptr, weight.contiguous(), by_key, self.position)
        return by_key

    def to_query_order(self, by_key: Tensor, out: Tensor) -> None:
        _run(_to_query_order, 1, self.key_indptr, by_key, out, self.position)

    def sorted(self, values: Tensor | None) -> Tensor | None:
        """``[num_edges, heads or 1]`` in the order of the transposed graph."""
        return None if values is None else values.detach()[self.position]


class _Logits(NamedTuple):
    """What the logits of some heads are made of."""

    query: Tensor
    key: Tensor
    modifiers: tuple  # the last two number the edges of all heads for dropout

    @classmethod
    def of(cls, some: slice, tables: list[Tensor], query: Tensor, key: Tensor,
           edge_bias: Tensor | None, edge_gate: Tensor | None, seed: Tensor | None, scale: float,
           dropout_p: float) -> _Logits:
        own_query, own_key = (_apart(x, some, table) for x, table in zip((query, key), tables))
        bias, gate = (values if values is None or values.size(1) == 1 else values[:, some]
                      for values in (edge_bias, edge_gate))
        terms = modifiers(bias, gate, seed, scale, dropout_p, own_query.dtype)
        return cls(own_query, own_key, (*terms, some.start, query.size(1)))

    def softmax(self, edges: _Edges, weight: Tensor) -> Tensor:
        """Puts the weights into ``weight``; returns the log-sum-exp of each query."""
        lse = self.query.new_empty(self.query.shape[:2])
        edges.run(_softmax, self.query, self.key, *self.modifiers, weight, lse)
        return lse

    def softmax_by_key(self, edges: _Edges, weight: Tensor, lse: Tensor) -> None:
        """The same in the order of the transposed graph, in which bias and gate must be."""
        edges.run_by_key(_softmax_by_key, self.query, self.key, *self.modifiers, weight, lse,
                         edges.position)


class _LogitGrads(NamedTuple):
    """What the gradients become of query, key, bias and gate."""

    query: Tensor
    key: Tensor
    bias: Tensor
    gate: Tensor

    @classmethod
    def of(cls, query: Tensor, key: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
           needs_bias: bool, needs_gate: bool) -> _LogitGrads:
        edge_grads = [torch.zeros_like(values) if needed else query.new_empty(0, query.size(1))
                      for values, needed in ((edge_bias, needs_bias), (edge_gate, needs_gate))]
        return cls(torch.empty_like(query), torch.empty_like(key), *edge_grads)

    def put(self, some: slice, tables: list[Tensor], edges: _Edges, logits: _Logits,
            weight: Tensor, dot: Tensor, delta: Tensor, grad_logit: Tensor, lse: Tensor) -> None:
        """Those of some heads, by the gradients ``dot`` of weights and their mean ``delta`` by
        weights, with room for those of logits."""
        query, key = logits.query, logits.key
        grad_query, grad_key = (table[:len(query)] for table in tables)
        edge_grads = [weight.new_empty(len(grad), len(query)) for grad in (self.bias, self.gate)]
        edges.run_by_key(_softmax_backward, query, key, *logits.modifiers, weight, lse, dot, delta,
                         grad_logit, grad_key, *edge_grads, edges.position)
        edges.run(_weighted_sums, key, grad_logit, grad_query)
        self.query[:, some] = grad_query.transpose(0, 1)
        self.key[:, some] = grad_key.transpose(0, 1)
        for grad, by_key in zip((self.bias, self.gate), edge_grads):
            if len(grad) and grad.size(1) == 1:
                grad[edges.position] += by_key.sum(dim=1, keepdim=True)
            elif len(grad):
                grad[edges.position, some] = by_key


class _Hops(NamedTuple):
    """Where the hops of some heads start, their chance to go back there, and what each brought to
    all heads."""

    start: Tensor
    chance: Tensor
    messages: Tensor
    first_head: int
    tables: list[Tensor]

    @classmethod
    def of(cls, some: slice, tables: list[Tensor], value: Tensor, teleport: Tensor,
           messages: Tensor) -> _Hops:
        start = _apart(value, some, tables[0])
        chance = teleport[..., some].detach().to(start.dtype).transpose(1, 2).contiguous()
        rooms = [table[:len(start)] for table in tables[1:]]
        return cls(start, chance, messages, some.start, rooms)

    def walk(self, edges: _Edges, weight: Tensor) -> Tensor:
        """Where they arrive."""
        after, other, unkept = self.tables
        messages, first_head = (self.messages, self.first_head) if len(self.messages) else (
            unkept.unsqueeze(0), 0)
        num_hops = len(self.chance)
        edges.run(_walk, self.start, weight, self.chance, messages, first_head, after, other,
                  num_phases=num_hops)
        return (after if num_hops % 2 else other) if num_hops else self.start


class _HopGrads(NamedTuple):
    """What the gradients become of value and teleport."""

    value: Tensor
    teleport: Tensor

    @classmethod
    def of(cls, value: Tensor, teleport: Tensor, needs_teleport: bool) -> _HopGrads:
        return cls(torch.empty_like(value),
                   teleport.new_empty(teleport.shape if needs_teleport else 0))

    def put(self, some: slice, edges: _Edges, hops: _Hops, grad_out: Tensor, weight: Tensor,
            dot: Tensor) -> Tensor:
        """Those of some heads, whose weights come by key. Puts the gradient of each weight into
        ``dot``, unless that is empty; returns their mean by weights for each query."""
        start, chance, messages, first_head, (grad, going_on, x, grad_start) = hops
        _apart(grad_out, some, grad)
        stop = chance[0] if len(chance) else torch.ones_like(start[..., 0])
        torch.mul(1 - stop.unsqueeze(2), grad, out=x)
        torch.mul(stop.unsqueeze(2), grad, out=grad_start)
        delta = torch.zeros_like(stop)
        grad_chance = torch.empty_like(chance if len(self.teleport) else chance[:, :0])
        edges.run_by_key(_walk_back, x, weight, start, chance, messages, first_head, grad, going_on,
                         grad_start, grad_chance, dot, delta, num_phases=len(chance))
        self.value[:, some] = grad_start.transpose(0, 1)
        if len(self.teleport):
            self.teleport[..., some] = grad_chance.transpose(1, 2)
        return delta


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float)


def _tables(groups: list[slice], nodes: list[Tensor], edges: list[Tensor] = ()) -> list[Tensor]:
    """Room for the heads of a group: as much as for those of ``nodes``, ``[nodes, heads,
    channels]``, and for a number on each of ``edges``."""
    heads, dtype = groups[0].stop, accumulation_dtype(nodes[0])
    return [x.new_empty(heads, len(x), *x.shape[2:], dtype=dtype) for x in (*nodes, *edges)]


def _apart(tensor: Tensor, some: slice, table: Tensor) -> Tensor:
    """Some heads of ``[nodes, heads, channels]`` in ``table``, ``[heads, nodes, channels]``."""
    own = tensor.detach()[:, some].transpose(0, 1)
    return table[:len(own)].copy_(own)


def modifiers(edge_bias: Tensor | None, edge_gate: Tensor | None, seed: Tensor | None,
              scale: float, dropout_p: float, dtype: torch.dtype) -> tuple:
    """What stands between dot products and weights, in types that do not depend on what is given:
    each combination would be compiled once more."""
    bias, gate = (np.empty((0, 1), torch.zeros((), dtype=dtype).numpy().dtype) if values is None
                  else values.detach().to(dtype).contiguous().numpy()
                  for values in (edge_bias, edge_gate))
    seed = np.uint64(0 if seed is None else seed.item() % 2**64)
    threshold = np.uint64(int(dropout_p * 2**64))
    real = bias.dtype.type
    return bias, gate, real(scale), seed, threshold, real(1 / (1 - dropout_p))


def _heads_at_once(num_heads: int, num_edges: int) -> list[slice]:
    """Heads that share the room for edges."""
    size = min(num_heads, max(1, _EDGES_AT_ONCE // max(num_edges, 1)))
    return [slice(first, min(first + size, num_heads)) for first in range(0, num_heads, size)]


_EDGES_AT_ONCE = 1 << 20  # of all heads that go together


def _run(kernel, num_phases: int, indptr: Tensor, rows: Tensor, *arguments) -> None:
    """``kernel`` on ``rows`` of some heads, along spans of equally many edges: threads may not be
    equally fast, and wait for one another, so that each takes the next span when it is done."""
    heads, channels = len(rows), rows[0, :1].numel()
    num_products = int(indptr[-1]) * heads * channels
    num_threads = min(torch.get_num_threads(), 1 + num_products // GRAIN)
    num_spans = 1 if num_threads == 1 else _SPANS_PER_THREAD * num_threads
    one_block = np.array([0, indptr.numel() - 1])
    spans, _ = cut_into_spans(indptr.numpy(), one_block, heads, num_spans)
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in (rows, *arguments, indptr)]
    progress = np.zeros((num_phases, 2), np.int64)
    run_calls([(kernel, spans, progress, *arrays)] * num_threads)


_SPANS_PER_THREAD = 16


# Kernels #############################################################################


@jit
def _softmax(spans, progress, query, key, bias, gate, scale, seed, threshold, keep_scale,
             first_head, num_heads, weight, lse, edge_key, indptr):
    logit = np.empty(longest_row(spans, indptr), query.dtype)
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            lse[head, i] = -np.inf
            if n > 0:
                dots(logit, query[head], i, key[head], 0, edge_key[first:], n)
                modify(logit, bias, gate, scale, first, n, head)
                high, total = exponentials(logit, n, query.dtype.type(-np.inf))
                lse[head, i] = high + query.dtype.type(math.log(total))
                if threshold > 0:
                    for e in range(n):
                        logit[e] *= keep(seed, threshold, keep_scale,
                                         (first + e) * num_heads + first_head + head)
                row_weight = weight[head, first:first + n]
                for e in range(n):
                    row_weight[e] = logit[e] / total
        span = claim(progress, 0)


@jit_inline
def _weigh(weight, key, j, query, bias, gate, scale, lse, row_query, head, first, n):
    """``_softmax`` of the edges to key ``j``."""
    dots(weight, key[head], j, query[head], 0, row_query, n)
    modify(weight, bias, gate, scale, first, n, head)
    for e in range(n):
        weight[e] -= lse[head, np.uint64(row_query[e])]  # not negative, which would be looked into
    for e in range(whole_vectors(n)):
        weight[e] = exp(weight[e])


@jit
def _softmax_by_key(spans, progress, query, key, bias, gate, scale, seed, threshold, keep_scale,
                    first_head, num_heads, weight, lse, position, edge_query, indptr):
    row_weight = np.empty(longest_row(spans, indptr), query.dtype)
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for j in range(begin, end):
            first, n = indptr[j], indptr[j + 1] - indptr[j]
            _weigh(row_weight, key, j, query, bias, gate, scale, lse,
                   edge_query[first:first + n], head, first, n)
            if threshold > 0:
                for e in range(n):
                    row_weight[e] *= keep(seed, threshold, keep_scale,
                                          position[first + e] * num_heads + first_head + head)
            target = weight[head, first:first + n]
            for e in range(n):
                target[e] = row_weight[e]
        span = claim(progress, 0)


@jit
def _softmax_backward(
        spans, progress, query, key, bias, gate, scale, seed, threshold, keep_scale, first_head,
        num_heads, weight, lse, dot, delta, grad_logit, grad_key, grad_bias, grad_gate, position,
        edge_query, indptr):
    """From the edges to each key; leaves what queries need in ``grad_logit``, in their order."""
    longest = longest_row(spans, indptr)
    change, product = np.empty(longest, query.dtype), np.empty(longest, query.dtype)
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for j in range(begin, end):
            clear_row(grad_key[head], j)
            first, n = indptr[j], indptr[j + 1] - indptr[j]
            row_weight, row_dot = weight[head, first:first + n], dot[head, first:first + n]
            row_query, row_position = edge_query[first:first + n], position[first:first + n]
            if threshold > 0:  # weights that dropout has changed or lost
                _weigh(product, key, j, query, bias, gate, scale, lse, row_query, head, first, n)
                for e in range(n):
                    change[e] = (row_weight[e] * row_dot[e]
                                 - product[e] * delta[head, np.uint64(row_query[e])])
            else:
                for e in range(n):
                    change[e] = row_weight[e] * (row_dot[e] - delta[head, np.uint64(row_query[e])])
            if grad_bias.shape[0] > 0:
                for e in range(n):
                    grad_bias[first + e, head] = change[e]
            if grad_gate.shape[0] > 0:
                dots(product, key[head], j, query[head], 0, row_query, n)
                for e in range(n):
                    grad_gate[first + e, head] = change[e] * product[e] * scale
            for e in range(n):
                change[e] *= scale
            if gate.shape[0] > 0:
                column = min(head, gate.shape[1] - 1)
                for e in range(n):
                    change[e] *= gate[first + e, column]
            for e in range(n):
                grad_logit[head, np.uint64(row_position[e])] = change[e]
            add_weighted(grad_key[head], j, change, query[head], 0, row_query, n)
        span = claim(progress, 0)


@jit
def _weighted_sums(spans, progress, x, weight, out, edge_key, indptr):
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            clear_row(out[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            add_weighted(out[head], i, weight[head, first:], x[head], 0, edge_key[first:], n)
        span = claim(progress, 0)


@jit
def _walk(spans, progress, start, weight, chance, messages, first_head, after, other, edge_key,
          indptr):
    """For each hop ``_weighted_sums``, and back to the start by chance."""
    x = start
    for hop in range(len(chance) - 1, -1, -1):
        kept = min(hop, len(messages) - 1)
        span = claim(progress, hop)
        while span < len(spans):
            head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
            message = messages[kept, first_head + head]
            for i in range(begin, end):
                clear_row(message, i)
                first, n = indptr[i], indptr[i + 1] - indptr[i]
                add_weighted(message, i, weight[head, first:], x[head], 0, edge_key[first:], n)
                _restart(after[head], i, message, start[head], chance[hop, head, i], i)
            span = finish_and_claim(progress, hop)
        wait_for_all(spans, progress, hop)
        x, after, other = after, other, after


@jit
def _walk_back(spans, progress, x, weight, start, chance, messages, first_head, grad, going_on,
               grad_start, grad_chance, dot, delta, edge_query, indptr):
    """For each hop ``_weighted_sums`` of ``x``, the part of ``grad`` that does not stop, and on
    every edge ``<x_j, y_i>``, added to those of later hops, where y is what the hop started from:
    the values, or what the hop before it made of its message. What a hop brought is a sum by
    weights, and so is what its gradient ``x`` gives them."""
    y = np.empty((1, x.shape[2]), x.dtype)
    for hop in range(len(chance)):  # the last hop first
        before, is_first = hop + 1, hop == len(chance) - 1
        span = claim(progress, hop)
        while span < len(spans):
            head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
            brought = messages[hop, first_head + head]
            message = start[head] if is_first else messages[before, first_head + head]
            for i in range(begin, end):
                back = x.dtype.type(0) if is_first else chance[before, head, i]
                stop = x.dtype.type(1) if is_first else back
                if grad_chance.shape[1] > 0:
                    grad_chance[hop, head, i] = (dot_of_rows(grad[head], start[head], i)
                                                 - dot_of_rows(grad[head], brought, i))
                clear_row(grad[head], i)
                delta[head, i] += dot_of_rows(x[head], brought, i)
                first, n = indptr[i], indptr[i + 1] - indptr[i]
                row_weight, row_query = weight[head, first:], edge_query[first:]
                if dot.shape[1] == 0:
                    add_weighted(grad[head], i, row_weight, x[head], 0, row_query, n)
                else:
                    row_dot = dot[head, first:first + n]
                    if hop == 0:
                        for e in range(n):
                            row_dot[e] = 0
                    _restart(y, 0, message, start[head], back, i)
                    add_weighted_and_dots(grad[head], i, row_weight, row_dot, y, x[head],
                                          row_query, n)
                copy_row(going_on[head], i, 0, grad[head], i, 0, grad.shape[2])
                multiply_row(going_on[head], i, x.dtype.type(1 - stop))
                add_row(grad_start[head], i, stop, grad[head], i)
            span = finish_and_claim(progress, hop)
        wait_for_all(spans, progress, hop)
        x, going_on = going_on, x


@jit_inline
def _restart(out, row, message, start, chance, i):
    """:func:`graphattn.kernels.gather.restart` of row ``i``."""
    copy_row(out, row, 0, message, i, 0, message.shape[1])
    if chance != 0:
        multiply_row(out, row, out.dtype.type(1 - chance))
        add_row(out, row, chance, start, i)


@jit
def _to_key_order(spans, progress, by_query, by_key, position, indptr):
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        first, last = indptr[begin], indptr[end]
        source, target, row = by_query[head], by_key[head, first:last], position[first:last]
        for e in range(len(row)):
            target[e] = source[np.uint64(row[e])]  # not negative, which would be looked into
        span = claim(progress, 0)


@jit
def _to_query_order(spans, progress, by_key, by_query, position, indptr):
    span = claim(progress, 0)
    while span < len(spans):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        first, last = indptr[begin], indptr[end]
        source, target, row = by_key[head, first:last], by_query[head], position[first:last]
        for e in range(len(row)):
            target[np.uint64(row[e])] = source[e]
        span = claim(progress, 0)
