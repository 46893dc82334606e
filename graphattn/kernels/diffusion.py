"""Attention that takes several hops, compiled by numba for CPUs: weights once, K sparse products.

Every sum belongs to one row of the graph or of its transpose, and so to one thread: results do not
depend on how many there are. Heads lie apart in memory, ``[heads, nodes, channels]``, so that the
values of one stay in the cache while its edges are followed; weights are ``[heads, edges]``.

The weights are kept, edges x heads numbers, and what every hop brought, hops x values. The backward
pass goes back along the transposed graph, from queries to a key: a gradient that it reads to carry
it there is also multiplied by the key's values before the hop, which is what the weight gets. It
takes a few heads at a time, so that what it needs for each edge stays small.
"""

from __future__ import annotations

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
    longest_row,
    modify,
    multiply_row,
)


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
    return _weights(query, key, edge_bias, edge_gate, graph.indptr, graph.key, *by_key, scale).t()


def attention_diffusion(weight: Tensor, value: Tensor, graph: BipartiteGraph,
                        teleport: Tensor) -> Tensor:
    by_key = _by_key(graph, weight, value, teleport)
    out, _ = _diffusion(weight.t().contiguous(), value, teleport, graph.indptr, graph.key, *by_key,
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
) -> Tensor:
    """:func:`attention_diffusion` along :func:`attention_weights`, of which the gradient, edges x
    heads numbers more, is never held as a whole."""
    by_key = _by_key(graph, query, key, value, edge_bias, edge_gate, teleport)
    out, *_ = _diffused(query, key, value, edge_bias, edge_gate, teleport, graph.indptr, graph.key,
                        *by_key, scale, by_key[0].numel() > 0)
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
    weight = query.new_empty(query.size(1), edge_key.numel(), dtype=accumulation_dtype(query))
    rows = [_apart(tensor) for tensor in (query, key)]
    _run(_softmax, indptr, rows[1], *rows, *_modifiers(edge_bias, edge_gate, scale, weight), weight,
         _offsets(edge_key, rows[1]))
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
    logits = _Logits.of(query, key, edge_gate, scale, weight, (needs_bias, needs_gate))
    edges = _Edges.of(indptr, edge_key, key_indptr, edge_query, position, logits.key)
    for some in _heads_at_once(weight):
        grad_weight = grad[some].clone(memory_format=torch.contiguous_format)
        logits.backward(edges, some, weight[some], grad_weight)
    return logits.gradients(query.dtype, edge_bias, edge_gate)


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
    start, chance = _apart(value), _chance(teleport, weight)
    messages = start.new_empty(len(chance) if keep_messages else 1, *start.shape)
    z, offset = start, _offsets(edge_key, start)
    for hop in reversed(range(len(chance))):
        after = torch.empty_like(start)
        _run(_hop, indptr, start, weight, z, start, chance[hop],
             messages[hop if keep_messages else 0], after, offset)
        z = after
    out = _together(z, value.dtype)
    return out, messages if keep_messages else messages.new_empty(0, *start.shape)


@_diffusion.register_fake
def _(weight, value, teleport, *graph_and_keep):
    nodes, heads, channels = value.shape
    messages = value.new_empty(teleport.size(0) if graph_and_keep[-1] else 0, heads, nodes,
                               channels, dtype=weight.dtype)
    return value.new_empty(value.shape), messages


@torch.library.custom_op('graphattn::attention_diffusion_backward', mutates_args=(),
                         device_types='cpu')
def _diffusion_backward(
    grad_out: Tensor, messages: Tensor, weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    needs_weight: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of weight, value and teleport; empty where not needed."""
    hops = _Hops.of(grad_out, messages, value, teleport, weight, needs_teleport)
    edges = _Edges.of(indptr, edge_key, key_indptr, edge_query, position, hops.start)
    grad_weight = weight.new_empty(weight.shape if needs_weight else 0)
    for some in _heads_at_once(weight):
        dot = hops.backward(edges, some, weight[some], needs_weight)
        if needs_weight:
            edges.to_query_order(dot, grad_weight[some])
    return grad_weight, *hops.gradients(value.dtype)


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
    scale: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and if kept the weights and what hops brought."""
    graph = indptr, edge_key, key_indptr, edge_query, position
    weight = _weights(query, key, edge_bias, edge_gate, *graph, scale)
    out, messages = _diffusion(weight, value, teleport, *graph, keep)
    return out, weight if keep else weight.new_empty(0), messages


@_diffused.register_fake
def _(query, key, value, edge_bias, edge_gate, teleport, indptr, edge_key, key_indptr, edge_query,
      position, scale, keep):
    (nodes, heads, channels), dtype = value.shape, accumulation_dtype(query)
    weight = query.new_empty((heads, edge_key.numel()) if keep else 0, dtype=dtype)
    messages = query.new_empty(teleport.size(0) if keep else 0, heads, nodes, channels, dtype=dtype)
    return value.new_empty(value.shape), weight, messages


@torch.library.custom_op('graphattn::diffused_attention_backward', mutates_args=(),
                         device_types='cpu')
def _diffused_backward(
    grad_out: Tensor, weight: Tensor, messages: Tensor,
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, position: Tensor,
    scale: float, needs_weight: bool, needs_bias: bool, needs_gate: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, bias, gate, value and teleport; empty where not needed."""
    graph = indptr, edge_key, key_indptr, edge_query, position
    hops = _Hops.of(grad_out, messages, value, teleport, weight, needs_teleport)
    logits = _Logits.of(query, key, edge_gate, scale, weight, (needs_bias, needs_gate))
    edges_of_values = _Edges.of(*graph, hops.start)
    is_one_width = hops.start.size(2) == logits.key.size(2)
    edges_of_keys = edges_of_values if is_one_width else _Edges.of(*graph, logits.key)
    for some in _heads_at_once(weight):
        dot = hops.backward(edges_of_values, some, weight[some], needs_weight)
        if needs_weight:
            grad_weight = torch.empty_like(dot)
            edges_of_values.to_query_order(dot, grad_weight)
            logits.backward(edges_of_keys, some, weight[some], grad_weight)
    return *logits.gradients(query.dtype, edge_bias, edge_gate), *hops.gradients(value.dtype)


@_diffused_backward.register_fake
def _(grad_out, weight, messages, query, key, value, edge_bias, edge_gate, teleport, indptr,
      edge_key, key_indptr, edge_query, position, scale, needs_weight, needs_bias, needs_gate,
      needs_teleport):
    edge_grads = [values.new_empty(values.shape) if needed else weight.new_empty(0, query.size(1))
                  for values, needed in ((edge_bias, needs_bias), (edge_gate, needs_gate))]
    return (query.new_empty(query.shape), key.new_empty(key.shape), *edge_grads,
            value.new_empty(value.shape),
            teleport.new_empty(teleport.shape if needs_teleport else 0))


def _save_diffused(ctx, inputs, output) -> None:
    *tensors, ctx.scale, _ = inputs
    _, weight, messages = output
    ctx.mark_non_differentiable(weight, messages)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(weight, messages, *tensors)


def _differentiate_diffused(ctx, grad_out, *_):
    nothing = (None,) * 7
    if grad_out is None:
        return *(None,) * 6, *nothing
    needs_query, needs_key, _, needs_bias, needs_gate, needs_teleport = ctx.needs_input_grad[:6]
    needs_weight = needs_query or needs_key or needs_bias or needs_gate
    query, key, bias, gate, value, teleport = _diffused_backward(
        grad_out, *ctx.saved_tensors, ctx.scale, needs_weight, needs_bias, needs_gate,
        needs_teleport)
    return (query if needs_query else None, key if needs_key else None, value,
            bias if needs_bias else None, gate if needs_gate else None,
            teleport if needs_teleport else None, *nothing)


_diffused.register_autograd(_differentiate_diffused, setup_context=_save_diffused)


# Backward passes, a few heads at a time ##############################################


class _Edges(NamedTuple):
    """A graph and its transpose as the loops read them, for rows of one width."""

    indptr: Tensor
    offset: Tensor
    key_indptr: Tensor
    key_offset: Tensor
    position: Tensor

    @classmethod
    def of(cls, indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor,
           position: Tensor, rows: Tensor) -> _Edges:
        return cls(indptr, _offsets(edge_key, rows), key_indptr, _offsets(edge_query, rows),
                   position)

    def by_key(self, weight: Tensor) -> Tensor:
        by_key = torch.empty_like(weight)
        _run(_to_key_order, self.key_indptr, weight[..., None], weight, by_key, self.position)
        return by_key

    def to_query_order(self, by_key: Tensor, out: Tensor) -> None:
        _run(_to_query_order, self.key_indptr, by_key[..., None], by_key, out, self.position)


class _Hops(NamedTuple):
    """Tensors of the hops whose heads lie apart, and what their gradients become."""

    start: Tensor
    chance: Tensor
    messages: Tensor
    grad: Tensor
    grad_start: Tensor
    grad_teleport: Tensor

    @classmethod
    def of(cls, grad_out: Tensor, messages: Tensor, value: Tensor, teleport: Tensor,
           weight: Tensor, needs_teleport: bool) -> _Hops:
        start = _apart(value)
        return cls(start, _chance(teleport, weight), messages, _apart(grad_out),
                   torch.empty_like(start),
                   teleport.new_zeros(teleport.shape if needs_teleport else 0))

    def backward(self, edges: _Edges, some: slice, weight: Tensor, needs_weight: bool) -> Tensor:
        """Of some heads; returns the gradients of their weights, by key."""
        start, grad, messages = self.start[some], self.grad[some], self.messages[:, some]
        chance = self.chance[:, some]
        stop = torch.cat([chance, torch.ones_like(chance[:1])])  # after the last hop for certain
        going_on, grad_start = (1 - stop[0]) * grad, self.grad_start[some]
        torch.mul(stop[0], grad, out=grad_start)
        by_key = edges.by_key(weight)
        dot = torch.empty_like(by_key) if needs_weight else by_key[:, :0]
        for hop in range(len(chance)):  # the last hop first
            if self.grad_teleport.numel():
                change = (grad * (start - messages[hop])).sum(dim=2)
                self.grad_teleport[hop, :, some] = change.t()
            # It started from the values, or from what the hop before it made of its message.
            is_first = hop == len(chance) - 1
            message, back = (start, torch.zeros_like(stop[0])) if is_first else (
                messages[hop + 1], chance[hop + 1])
            going_on, x, grad = torch.empty_like(start), going_on, torch.empty_like(start)
            _run(_hop_back, edges.key_indptr, start, by_key, x, start, message, back,
                 stop[hop + 1], grad, going_on, grad_start, dot, hop > 0, edges.key_offset)
        return dot

    def gradients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of value and teleport."""
        return _together(self.grad_start, dtype), self.grad_teleport


class _Logits(NamedTuple):
    """What logits are made of, heads apart, and what the gradients become."""

    query: Tensor
    key: Tensor
    gate: Tensor
    scale: float
    grad_query: Tensor
    grad_key: Tensor
    edge_grads: list[Tensor]

    @classmethod
    def of(cls, query: Tensor, key: Tensor, edge_gate: Tensor | None, scale: float,
           weight: Tensor, needs_edge_grads: tuple[bool, bool]) -> _Logits:
        query, key = _apart(query), _apart(key)
        _, gate, scale = _modifiers(None, edge_gate, scale, weight)
        heads, num_edges = weight.shape
        edge_grads = [weight.new_empty(num_edges if needed else 0, heads)
                      for needed in needs_edge_grads]
        return cls(query, key, gate, scale, torch.empty_like(query), torch.empty_like(key),
                   edge_grads)

    def backward(self, edges: _Edges, some: slice, weight: Tensor, grad: Tensor) -> None:
        """Of some heads; puts the gradients of the logits in the place of those of the weights."""
        query, key, gate = self.query[some], self.key[some], self.gate
        gate = gate[:, some].contiguous() if gate.size(1) > 1 else gate
        edge_grads = [values.new_empty(len(values), len(weight)) for values in self.edge_grads]
        _run(_softmax_backward, edges.indptr, key, query, key, gate, self.scale,
             weight, grad, grad, self.grad_query[some], *edge_grads, edges.offset)
        for values, of_some in zip(self.edge_grads, edge_grads):
            values[:, some] = of_some
        _run(_weighted_sums, edges.key_indptr, query, edges.by_key(grad), query,
             self.grad_key[some], edges.key_offset)

    def gradients(self, dtype: torch.dtype, edge_bias: Tensor | None,
                  edge_gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of query, key, bias and gate."""
        return (_together(self.grad_query, dtype), _together(self.grad_key, dtype),
                *(sum_to(grad, values)
                  for grad, values in zip(self.edge_grads, (edge_bias, edge_gate))))


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float)


def _apart(tensor: Tensor) -> Tensor:
    """``[nodes, heads, channels]`` as ``[heads, nodes, channels]``, in the dtype of sums."""
    return tensor.detach().to(accumulation_dtype(tensor)).transpose(0, 1).contiguous()


def _together(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``[heads, nodes, channels]`` as ``[nodes, heads, channels]``."""
    return tensor.transpose(0, 1).to(dtype, copy=True).contiguous()


def _chance(teleport: Tensor, weight: Tensor) -> Tensor:
    """``[hops, nodes, heads]`` as ``[hops, heads, nodes, 1]``."""
    return teleport.detach().to(weight.dtype).transpose(1, 2).contiguous().unsqueeze(3)


def _modifiers(edge_bias: Tensor | None, edge_gate: Tensor | None, scale: float,
               weight: Tensor) -> tuple:
    """What stands between dot products and weights, in types that do not depend on what is
    given."""
    bias, gate = (weight.new_empty(0, 1) if values is None
                  else values.detach().to(weight.dtype).contiguous()
                  for values in (edge_bias, edge_gate))
    return bias, gate, bias.numpy().dtype.type(scale)


def sum_to(grad: Tensor, values: Tensor | None) -> Tensor:
    """Sums over heads what all heads share."""
    if values is None or grad.size(0) != values.size(0):
        return grad
    return (grad.sum(1, keepdim=True) if values.size(1) < grad.size(1) else grad).to(values.dtype)


def _offsets(column: Tensor, rows: Tensor) -> Tensor:
    """Where the row of each edge begins; three more, for dot products are taken by fours."""
    dtype = torch.int32 if rows.size(1) * rows.size(2) < 2**31 else torch.int64
    offset = column.new_empty(column.numel() + 3, dtype=dtype)
    offset[:-3].copy_(column).mul_(rows.size(2))
    offset[-3:] = 0
    return offset


def _heads_at_once(weight: Tensor) -> list[slice]:
    """Heads that share the room for edges in a backward pass."""
    num_heads, num_edges = weight.shape
    size = max(1, _EDGES_AT_ONCE // max(num_edges, 1))
    return [slice(first, first + size) for first in range(0, num_heads, size)]


_EDGES_AT_ONCE = 1 << 20  # of all heads that go together


def _run(kernel, indptr: Tensor, rows: Tensor, *arguments) -> None:
    """``kernel`` on every head of ``rows`` along the edges, pieces of equally many edges each in a
    thread."""
    heads, _, channels = rows.shape
    num_parts = min(torch.get_num_threads(), 1 + int(indptr[-1]) * heads * channels // GRAIN)
    one_block = np.array([0, indptr.numel() - 1])
    spans, part_ptr = cut_into_spans(indptr.numpy(), one_block, heads, num_parts)
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in (*arguments, indptr)]
    run_calls([(kernel, part, *arrays) for part in np.split(spans, part_ptr[1:-1])])


# Kernels #############################################################################


@jit
def _softmax(spans, query, key, bias, gate, scale, weight, offset, indptr):
    logit = np.empty(longest_row(spans, indptr), query.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            if n > 0:
                dots(logit, query[head], i, key[head], 0, offset[first:], n)
                modify(logit, bias, gate, scale, first, n, head)
                _, total = exponentials(logit, n, query.dtype.type(-np.inf))
                row_weight = weight[head, first:first + n]
                for e in range(n):
                    row_weight[e] = logit[e] / total


@jit
def _softmax_backward(spans, query, key, gate, scale, weight, grad, grad_logit, grad_query,
                      grad_bias, grad_gate, offset, indptr):
    longest = longest_row(spans, indptr)
    change, dot = np.empty(longest, query.dtype), np.empty(longest, query.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            clear_row(grad_query[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            if n == 0:
                continue
            row_weight, row_grad = weight[head, first:first + n], grad[head, first:first + n]
            delta = query.dtype.type(0)
            for e in range(n):
                delta += row_weight[e] * row_grad[e]
            for e in range(n):
                change[e] = row_weight[e] * (row_grad[e] - delta)
            if grad_bias.shape[0] > 0:
                for e in range(n):
                    grad_bias[first + e, head] = change[e]
            if grad_gate.shape[0] > 0:
                dots(dot, query[head], i, key[head], 0, offset[first:], n)
                for e in range(n):
                    grad_gate[first + e, head] = change[e] * dot[e] * scale
            for e in range(n):
                change[e] *= scale
            if gate.shape[0] > 0:
                column = min(head, gate.shape[1] - 1)
                for e in range(n):
                    change[e] *= gate[first + e, column]
            row_logit = grad_logit[head, first:first + n]
            for e in range(n):
                row_logit[e] = change[e]
            add_weighted(grad_query[head], i, change, key[head], 0, offset[first:], n)


@jit
def _weighted_sums(spans, weight, x, out, offset, indptr):
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            clear_row(out[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            add_weighted(out[head], i, weight[head, first:], x[head], 0, offset[first:], n)


@jit
def _hop(spans, weight, x, start, chance, message, out, offset, indptr):
    """``_weighted_sums``, and back to the start by chance."""
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            clear_row(message[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            add_weighted(message[head], i, weight[head, first:], x[head], 0, offset[first:], n)
            _restart(out[head], i, message[head], start[head], chance[head, i, 0], i)


@jit
def _hop_back(spans, weight, x, start, message, chance, stop, grad, going_on, grad_start, dot,
              adds_to_dot, offset, indptr):
    """``_weighted_sums`` of ``x``, of which a part stops and the rest goes on, and on every edge
    ``<x_j, y_i>``, where y is what the hop started from."""
    row_dot, y = np.empty(longest_row(spans, indptr), x.dtype), np.empty((1, x.shape[2]), x.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        for i in range(begin, end):
            clear_row(grad[head], i)
            first, n = indptr[i], indptr[i + 1] - indptr[i]
            row_weight, row_offset = weight[head, first:], offset[first:]
            if dot.shape[1] == 0:
                add_weighted(grad[head], i, row_weight, x[head], 0, row_offset, n)
            else:
                _restart(y, 0, message[head], start[head], chance[head, i, 0], i)
                add_weighted_and_dots(grad[head], i, row_weight, row_dot, y, x[head], row_offset,
                                      n)
                edge_dot = dot[head, first:first + n]
                if adds_to_dot:
                    for e in range(n):
                        edge_dot[e] += row_dot[e]
                else:
                    for e in range(n):
                        edge_dot[e] = row_dot[e]
            copy_row(going_on[head], i, 0, grad[head], i, 0, grad.shape[2])
            multiply_row(going_on[head], i, grad.dtype.type(1 - stop[head, i, 0]))
            add_row(grad_start[head], i, stop[head, i, 0], grad[head], i)


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
