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
    clear_row,
    copy_row,
    cut_into_spans,
    dots,
    exponentials,
    jit,
    jit_inline,
    keep,
    longest_row,
    modify,
    multiply_row,
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
    return _weights(query, key, edge_bias, edge_gate, *graph.by_query, *by_key, scale).t()


def attention_diffusion(weight: Tensor, value: Tensor, graph: BipartiteGraph,
                        teleport: Tensor) -> Tensor:
    by_key = _by_key(graph, weight, value, teleport)
    out, _ = _diffusion(weight.t().contiguous(), value, teleport, *graph.by_query, *by_key,
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
    out, *_ = _diffused(query, key, value, edge_bias, edge_gate, teleport, *graph.by_query,
                        *by_key, seed, scale, dropout_p, by_key[0].numel() > 0)
    return out


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    """One hop on a square graph."""
    return attention_diffusion(weight, value, graph, weight.new_zeros(1, *value.shape[:2]))


def _by_key(graph: BipartiteGraph, *inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed graph, which takes time and is for gradients only."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return graph.by_key
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
    logits = _Logits.of(query, key, edge_bias, edge_gate, None, scale, 0.)
    weight = logits.query.new_empty(query.size(1), edge_key.numel())
    logits.softmax(edges, slice(0, len(weight)), weight)
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
    logits = _Logits.of(query, key, None, edges.sorted(edge_gate), None, scale, 0.)
    grads = _LogitGrads.of(logits, edges, needs_bias, needs_gate)
    for some in _heads_at_once(*weight.shape):
        change = weight[some] * grad[some]
        delta = torch.segment_reduce(change, 'sum', offsets=indptr.expand(len(change), -1), axis=1)
        grads.add(logits, edges, some, edges.by_key(weight[some]), edges.by_key(grad[some]), delta,
                  torch.empty_like(change))
    return grads.together(edges, query.dtype, edge_bias, edge_gate)


@_weights_backward.register_fake
def _(grad, weight, query, key, edge_bias, edge_gate, indptr, edge_key, key_indptr, edge_query,
      position, scale, needs_bias, needs_gate):
    edge_grads = [values.new_empty(values.shape) if needed else weight.new_empty(0, query.size(1))
                  for values, needed in ((edge_bias, needs_bias), (edge_gate, needs_gate))]
    return query.new_empty(query.shape), key.new_empty(key.shape), *edge_grads


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
    hops = _Hops.of(value, teleport, _empty_messages(value, teleport, keep_messages))
    out = hops.walk(edges, slice(0, len(weight)), weight)
    return _together(out, value.dtype), hops.messages


@_diffusion.register_fake
def _(weight, value, teleport, *graph_and_keep):
    return value.new_empty(value.shape), _empty_messages(value, teleport, graph_and_keep[-1])


@torch.library.custom_op('graphattn::attention_diffusion_backward', mutates_args=(),
                         device_types='cpu')
def _diffusion_backward(
    grad_out: Tensor, messages: Tensor, weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    needs_weight: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of weight, value and teleport; empty where not needed."""
    edges = _Edges(indptr, edge_key, key_indptr, edge_query, position)
    hops = _Hops.of(value, teleport, messages)
    grads = _HopGrads.of(hops, grad_out, needs_teleport)
    grad_weight = weight.new_empty(weight.shape if needs_weight else 0)
    for some in _heads_at_once(*weight.shape):
        by_key = edges.by_key(weight[some])
        dot = torch.empty_like(by_key) if needs_weight else by_key[:, :0]
        grads.add(hops, edges, some, by_key, dot)
        if needs_weight:
            edges.to_query_order(dot, grad_weight[some])
    return grad_weight, *grads.together(value.dtype)


@_diffusion_backward.register_fake
def _(grad_out, messages, weight, value, teleport, indptr, edge_key, key_indptr, edge_query,
      position, needs_weight, needs_teleport):
    return (weight.new_empty(weight.shape if needs_weight else 0), value.new_empty(value.shape),
            teleport.new_empty(teleport.shape if needs_teleport else 0))


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
    logits = _Logits.of(query, key, edge_bias, edge_gate, seed, scale, dropout_p)
    hops = _Hops.of(value, teleport, _empty_messages(value, teleport, keep_messages))
    groups, out = _heads_at_once(query.size(1), edge_key.numel()), torch.empty_like(hops.start)
    room = out.new_empty(groups[0].stop, edge_key.numel())
    for some in groups:
        weight = room[:some.stop - some.start]
        logits.softmax(edges, some, weight)
        out[some] = hops.walk(edges, some, weight)
    return _together(out, value.dtype), logits.lse, hops.messages


@_diffused.register_fake
def _(query, key, value, edge_bias, edge_gate, teleport, indptr, edge_key, key_indptr, edge_query,
      position, seed, scale, dropout_p, keep_messages):
    lse = query.new_empty(query.size(1), query.size(0), dtype=accumulation_dtype(query))
    return value.new_empty(value.shape), lse, _empty_messages(value, teleport, keep_messages)


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
    logits = _Logits.of(query, key, edges.sorted(edge_bias), edges.sorted(edge_gate), seed, scale,
                        dropout_p, lse)
    hops = _Hops.of(value, teleport, messages)
    logit_grads = _LogitGrads.of(logits, edges, needs_bias, needs_gate)
    hop_grads = _HopGrads.of(hops, grad_out, needs_teleport)
    groups = _heads_at_once(query.size(1), edge_key.numel())
    room = hops.start.new_empty(3, groups[0].stop, edge_key.numel())
    for some in groups:
        weight, dot, grad_logit = room[:, :some.stop - some.start]
        dot = dot if needs_weight else dot[:, :0]
        logits.weigh(edges, some, weight)
        delta = hop_grads.add(hops, edges, some, weight, dot)
        if needs_weight:
            logit_grads.add(logits, edges, some, weight, dot, delta, grad_logit)
    return *logit_grads.together(edges, query.dtype, edge_bias, edge_gate), *hop_grads.together(
        value.dtype)


@_diffused_backward.register_fake
def _(grad_out, lse, messages, query, key, value, edge_bias, edge_gate, teleport, indptr, edge_key,
      key_indptr, edge_query, position, seed, scale, dropout_p, needs_weight, needs_bias,
      needs_gate, needs_teleport):
    edge_grads = [values.new_empty(values.shape) if needed else lse.new_empty(0, query.size(1))
                  for values, needed in ((edge_bias, needs_bias), (edge_gate, needs_gate))]
    return (query.new_empty(query.shape), key.new_empty(key.shape), *edge_grads,
            value.new_empty(value.shape),
            teleport.new_empty(teleport.shape if needs_teleport else 0))


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

    def run(self, kernel, some: slice, channels: int, *arguments) -> None:
        """``kernel`` on every query of some heads."""
        _run(kernel, self.indptr, some, channels, *arguments, self.key)

    def run_by_key(self, kernel, some: slice, channels: int, *arguments) -> None:
        """``kernel`` on every key of some heads."""
        _run(kernel, self.key_indptr, some, channels, *arguments, self.query)

    def by_key(self, weight: Tensor) -> Tensor:
        """``[heads, num_edges]`` in the order of the transposed graph."""
        by_key = torch.empty_like(weight)
        _run(_to_key_order, self.key_indptr, slice(0, len(weight)), 1, weight, by_key,
             self.position)
        return by_key

    def to_query_order(self, by_key: Tensor, out: Tensor) -> None:
        _run(_to_query_order, self.key_indptr, slice(0, len(out)), 1, by_key, out, self.position)

    def sorted(self, values: Tensor | None) -> Tensor | None:
        """``[num_edges, heads or 1]`` in the order of the transposed graph."""
        return None if values is None else values.detach()[self.position]


class _Logits(NamedTuple):
    """What logits are made of, heads apart, and the log-sum-exp of those of each query."""

    query: Tensor
    key: Tensor
    modifiers: tuple
    lse: Tensor

    @classmethod
    def of(cls, query: Tensor, key: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
           seed: Tensor | None, scale: float, dropout_p: float, lse: Tensor | None = None,
           ) -> _Logits:
        query, key = _apart(query), _apart(key)
        lse = query.new_empty(query.shape[:2]) if lse is None else lse
        return cls(query, key, modifiers(edge_bias, edge_gate, seed, scale, dropout_p, query.dtype),
                   lse)

    def softmax(self, edges: _Edges, some: slice, weight: Tensor) -> None:
        """Weights of some heads in the order of the graph, with bias and gate in that order."""
        edges.run(_softmax, some, self.key.size(2), self.query, self.key, *self.modifiers, weight,
                  self.lse)

    def weigh(self, edges: _Edges, some: slice, weight: Tensor) -> None:
        """The same in the order of the transposed graph, with bias and gate in that one."""
        edges.run_by_key(_weights_by_key, some, self.key.size(2), self.query, self.key,
                         *self.modifiers, weight, self.lse, edges.position)


class _LogitGrads(NamedTuple):
    """What the gradients become of what logits are made of, those of edges by key."""

    query: Tensor
    key: Tensor
    bias: Tensor
    gate: Tensor

    @classmethod
    def of(cls, logits: _Logits, edges: _Edges, needs_bias: bool, needs_gate: bool) -> _LogitGrads:
        query, key, num_edges = logits.query, logits.key, edges.key.numel()
        return cls(torch.empty_like(query), torch.empty_like(key),
                   *(query.new_empty(num_edges if needed else 0, len(query))
                     for needed in (needs_bias, needs_gate)))

    def add(self, logits: _Logits, edges: _Edges, some: slice, weight: Tensor, dot: Tensor,
            delta: Tensor, grad_logit: Tensor) -> None:
        """Those of some heads, by the gradients ``dot`` of weights and their mean by weights."""
        channels = logits.key.size(2)
        edges.run_by_key(_softmax_backward, some, channels, logits.query, logits.key,
                         *logits.modifiers, weight, logits.lse, dot, delta, grad_logit, self.key,
                         self.bias, self.gate, edges.position)
        edges.run(_weighted_sums, some, channels, grad_logit, logits.key, self.query)

    def together(self, edges: _Edges, dtype: torch.dtype, edge_bias: Tensor | None,
                 edge_gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of query, key, bias and gate."""
        edge_grads = [torch.empty_like(grad).index_put_((edges.position[:len(grad)],), grad)
                      for grad in (self.bias, self.gate)]
        return (_together(self.query, dtype), _together(self.key, dtype),
                *(sum_to(grad, values)
                  for grad, values in zip(edge_grads, (edge_bias, edge_gate))))


class _Hops(NamedTuple):
    """Where the hops start, heads apart, their chance to go back there, and what each brought."""

    start: Tensor
    chance: Tensor
    messages: Tensor

    @classmethod
    def of(cls, value: Tensor, teleport: Tensor, messages: Tensor) -> _Hops:
        start = _apart(value)
        return cls(start, _chance(teleport, start), messages)

    def walk(self, edges: _Edges, some: slice, weight: Tensor) -> Tensor:
        """Where some heads arrive."""
        x, unkept = self.start[some], torch.empty_like(self.start[some])
        for hop in reversed(range(len(self.chance))):
            message = self.messages[hop, some] if len(self.messages) else unkept
            after = torch.empty_like(x)
            edges.run(_hop, some, x.size(2), weight, x, self.start, self.chance[hop], message,
                      after)
            x = after
        return x


class _HopGrads(NamedTuple):
    """The gradient of the output, heads apart, and what those of value and teleport become."""

    out: Tensor
    start: Tensor
    teleport: Tensor

    @classmethod
    def of(cls, hops: _Hops, grad_out: Tensor, needs_teleport: bool) -> _HopGrads:
        num_hops, heads, nodes, _ = hops.chance.shape
        return cls(_apart(grad_out), torch.empty_like(hops.start),
                   hops.chance.new_empty(num_hops if needs_teleport else 0, nodes, heads))

    def add(self, hops: _Hops, edges: _Edges, some: slice, weight: Tensor, dot: Tensor) -> Tensor:
        """Those of some heads, whose weights come by key. Puts the gradient of each weight into
        ``dot``, unless that is empty; returns their sums by weights for each query."""
        start, grad, messages = hops.start[some], self.out[some], hops.messages[:, some]
        chance = hops.chance[:, some]
        stop = torch.cat([chance, torch.ones_like(chance[:1])])  # after the last hop for certain
        going_on, grad_start = (1 - stop[0]) * grad, self.start[some]
        torch.mul(stop[0], grad, out=grad_start)
        delta = start.new_zeros(start.shape[:2])
        for hop in range(len(chance)):  # the last hop first
            if len(self.teleport):
                self.teleport[hop, :, some] = (grad * (start - messages[hop])).sum(dim=2).t()
            # What a message brings is a sum by weights, and so is what its gradient gives them.
            delta += (going_on * messages[hop]).sum(dim=2)
            # It started from the values, or from what the hop before it made of its message.
            is_first = hop == len(chance) - 1
            message, back = (start, torch.zeros_like(stop[0])) if is_first else (
                messages[hop + 1], chance[hop + 1])
            going_on, x, grad = torch.empty_like(start), going_on, torch.empty_like(start)
            edges.run_by_key(_hop_back, some, x.size(2), weight, x, start, message, back,
                             stop[hop + 1], grad, going_on, grad_start, dot, hop == 0)
        return delta

    def together(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of value and teleport."""
        return _together(self.start, dtype), self.teleport


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float)


def _apart(tensor: Tensor) -> Tensor:
    """``[nodes, heads, channels]`` as ``[heads, nodes, channels]``, in the dtype of sums."""
    return tensor.detach().to(accumulation_dtype(tensor)).transpose(0, 1).contiguous()


def _together(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``[heads, nodes, channels]`` as ``[nodes, heads, channels]``."""
    return tensor.transpose(0, 1).to(dtype, copy=True).contiguous()


def _chance(teleport: Tensor, like: Tensor) -> Tensor:
    """``[hops, nodes, heads]`` as ``[hops, heads, nodes, 1]``."""
    return teleport.detach().to(like.dtype).transpose(1, 2).contiguous().unsqueeze(3)


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


def sum_to(grad: Tensor, values: Tensor | None) -> Tensor:
    """Sums over heads what all heads share."""
    if values is None or grad.size(0) != values.size(0):
        return grad
    return (grad.sum(1, keepdim=True) if values.size(1) < grad.size(1) else grad).to(values.dtype)


def _heads_at_once(num_heads: int, num_edges: int) -> list[slice]:
    """Heads that share the room for edges."""
    size = min(num_heads, max(1, _EDGES_AT_ONCE // max(num_edges, 1)))
    return [slice(first, min(first + size, num_heads)) for first in range(0, num_heads, size)]


_EDGES_AT_ONCE = 1 << 20  # of all heads that go together


def _run(kernel, indptr: Tensor, some: slice, channels: int, *arguments) -> None:
    """``kernel`` on some heads along the edges, pieces of equally many each in a thread."""
    heads = some.stop - some.start
    num_parts = min(torch.get_num_threads(), 1 + int(indptr[-1]) * heads * channels // GRAIN)
    one_block = np.array([0, indptr.numel() - 1])
    spans, part_ptr = cut_into_spans(indptr.numpy(), one_block, heads, num_parts)
    spans[:, 0] += some.start
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in (*arguments, indptr)]
    run_calls([(kernel, part, *arrays) for part in np.split(spans, part_ptr[1:-1])])


# Kernels #############################################################################


# What only some heads have, and the first of them at 0, is read at ``own``.


@jit
def _softmax(spans, query, key, bias, gate, scale, seed, threshold, keep_scale, weight, lse,
             edge_key, indptr):
    longest, heads = longest_row(spans, indptr), len(query)
    logit = np.empty(longest, query.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        own = head % len(weight)
        for i in range(begin, end):
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            if n > 0:
                dots(logit, query[head], i, key[head], 0, edge_key[first:], n)
                modify(logit, bias, gate, scale, first, n, head)
                high, total = exponentials(logit, n, query.dtype.type(-np.inf))
                lse[head, i] = high + query.dtype.type(math.log(total))
                if threshold > 0:
                    for e in range(n):
                        logit[e] *= keep(seed, threshold, keep_scale, (first + e) * heads + head)
                row_weight = weight[own, first:first + n]
                for e in range(n):
                    row_weight[e] = logit[e] / total


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
def _weights_by_key(spans, query, key, bias, gate, scale, seed, threshold, keep_scale, weight, lse,
                    position, edge_query, indptr):
    longest, heads = longest_row(spans, indptr), len(query)
    row_weight = np.empty(longest, query.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        own = head % len(weight)
        for j in range(begin, end):
            first, n = indptr[j], indptr[j + 1] - indptr[j]
            _weigh(row_weight, key, j, query, bias, gate, scale, lse,
                   edge_query[first:first + n], head, first, n)
            if threshold > 0:
                for e in range(n):
                    row_weight[e] *= keep(seed, threshold, keep_scale,
                                          position[first + e] * heads + head)
            target = weight[own, first:first + n]
            for e in range(n):
                target[e] = row_weight[e]


@jit
def _softmax_backward(spans, query, key, bias, gate, scale, seed, threshold, keep_scale, weight,
                      lse, dot, delta, grad_logit, grad_key, grad_bias, grad_gate, position,
                      edge_query, indptr):
    """From the edges to each key; leaves what queries need in ``grad_logit``, in their order."""
    longest = longest_row(spans, indptr)
    change, product = np.empty(longest, query.dtype), np.empty(longest, query.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        own = head % len(weight)
        for j in range(begin, end):
            clear_row(grad_key[head], j)
            first, n = indptr[j], indptr[j + 1] - indptr[j]
            row_weight, row_dot = weight[own, first:first + n], dot[own, first:first + n]
            row_query, row_position = edge_query[first:first + n], position[first:first + n]
            if threshold > 0:  # weights that dropout has changed or lost
                _weigh(product, key, j, query, bias, gate, scale, lse, row_query, head, first, n)
                for e in range(n):
                    change[e] = (row_weight[e] * row_dot[e]
                                 - product[e] * delta[own, np.uint64(row_query[e])])
            else:
                for e in range(n):
                    change[e] = row_weight[e] * (row_dot[e] - delta[own, np.uint64(row_query[e])])
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
                grad_logit[own, np.uint64(row_position[e])] = change[e]
            add_weighted(grad_key[head], j, change, query[head], 0, row_query, n)


@jit
def _weighted_sums(spans, weight, x, out, edge_key, indptr):
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            clear_row(out[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            add_weighted(out[head], i, weight[head % len(weight), first:], x[head], 0,
                         edge_key[first:], n)


@jit
def _hop(spans, weight, x, start, chance, message, out, edge_key, indptr):
    """``_weighted_sums``, and back to the start by chance."""
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        own = head % len(weight)
        for i in range(begin, end):
            clear_row(message[own], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            add_weighted(message[own], i, weight[own, first:], x[own], 0, edge_key[first:], n)
            _restart(out[own], i, message[own], start[head], chance[head, i, 0], i)


@jit
def _hop_back(spans, weight, x, start, message, chance, stop, grad, going_on, grad_start, dot,
              is_last, edge_query, indptr):
    """``_weighted_sums`` of ``x``, of which a part stops and the rest goes on, and on every edge
    ``<x_j, y_i>``, added to those of later hops, where y is what the hop started from."""
    y = np.empty((1, x.shape[2]), x.dtype)
    for span in range(len(spans)):
        begin, end = spans[span, 1], spans[span, 2]
        own = spans[span, 0] % len(weight)
        for i in range(begin, end):
            clear_row(grad[own], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            row_weight, row_query = weight[own, first:], edge_query[first:]
            if dot.shape[1] == 0:
                add_weighted(grad[own], i, row_weight, x[own], 0, row_query, n)
            else:
                row_dot = dot[own, first:first + n]
                if is_last:
                    for e in range(n):
                        row_dot[e] = 0
                _restart(y, 0, message[own], start[own], chance[own, i, 0], i)
                add_weighted_and_dots(grad[own], i, row_weight, row_dot, y, x[own], row_query, n)
            copy_row(going_on[own], i, 0, grad[own], i, 0, grad.shape[2])
            multiply_row(going_on[own], i, grad.dtype.type(1 - stop[own, i, 0]))
            add_row(grad_start[own], i, stop[own, i, 0], grad[own], i)


@jit_inline
def _restart(out, row, message, start, chance, i):
    """:func:`graphattn.kernels.gather.restart` of row ``i``."""
    copy_row(out, row, 0, message, i, 0, message.shape[1])
    if chance != 0:
        multiply_row(out, row, out.dtype.type(1 - chance))
        add_row(out, row, chance, start, i)


@jit
def _to_key_order(spans, by_query, by_key, position, indptr):
    for span in range(len(spans)):
        head, first, last = spans[span, 0], indptr[spans[span, 1]], indptr[spans[span, 2]]
        source, target, row = by_query[head], by_key[head, first:last], position[first:last]
        for e in range(len(row)):
            target[e] = source[np.uint64(row[e])]  # not negative, which would be looked into


@jit
def _to_query_order(spans, by_key, by_query, position, indptr):
    for span in range(len(spans)):
        head, first, last = spans[span, 0], indptr[spans[span, 1]], indptr[spans[span, 2]]
        source, target, row = by_key[head, first:last], by_query[head], position[first:last]
        for e in range(len(row)):
            target[np.uint64(row[e])] = source[e]
