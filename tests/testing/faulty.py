"""Attention over a table of indices, written plainly, with faults that can be planted in it."""

from functools import partial

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 64  # edges of a row that a kernel would hold at once


def attention(query: Tensor, key: Tensor, value: Tensor, indices: Tensor, *,
              edge_bias: Tensor | None = None, edge_gate: Tensor | None = None,
              scale: float | None = None, softcap: float | None = None,
              sink: Tensor | None = None, dropout_p: float = 0., fault: str = '') -> Tensor:
    """Attend from query ``[N, H, C]`` to the keys that ``indices [N, K]`` name, padded by -1."""
    row, slot = distinct(indices, fault).nonzero(as_tuple=True)
    column = indices[row, slot] % max(1, key.size(0))
    if fault == 'counts keys in 16 bits':
        column = column % 2**16
    if fault == 'reads key 0 at the end of a chunk':
        column = torch.where(slot == CHUNK, 0, column)
    if fault == 'remembers the edges of a table of this shape':
        row, slot, column = REMEMBERED.setdefault(indices.shape, (row, slot, column))
    if scale is None or fault == 'leaves out the scale':
        scale = query.size(2) ** -0.5
    bias, gate = (x if x is None else x[row, slot] for x in (edge_bias, edge_gate))
    run = Refused if fault != 'takes its own intermediates for constants' else Attend
    return run.apply(query, key, value, bias, gate, sink, row, column, scale, softcap, dropout_p,
                     fault)


REMEMBERED: dict[torch.Size, tuple[Tensor, ...]] = {}


def distinct(indices: Tensor, fault: str) -> Tensor:
    """Return which entries of the table are edges: the first of each key in a row."""
    if fault == 'counts repeated edges twice':
        return indices >= 0
    first = torch.ones(indices.shape, dtype=torch.bool)
    for slot in range(1, indices.size(1)):
        first[:, slot] = (indices[:, :slot] != indices[:, slot:slot + 1]).all(1)
    return first if fault == 'takes -1 for the last key' else first & (indices >= 0)


def sums(x: Tensor, to: Tensor, size: int) -> Tensor:
    """Return sums of the edges of each node."""
    return x.new_zeros(size, *x.shape[1:]).index_add(0, to, x)


def sums_one_by_one(x: Tensor, to: Tensor, size: int) -> Tensor:
    """Return the same, rounded after each edge. ``index_add`` would not."""
    out = x.new_zeros(size, *x.shape[1:])
    for node, edge in zip(to.tolist(), x):
        out[node] += edge
    return out


def assume_contiguous(x: Tensor) -> Tensor:
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride())


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, bias, gate, sink, row, column, scale, softcap, dropout_p,
                fault):
        has = partial(str.__eq__, fault)
        if has('reads memory as if it were contiguous'):
            query, key, value = map(assume_contiguous, (query, key, value))
        if has('writes into the query'):
            query.detach().mul_(1 + 1e-3)
        num_queries, heads, _ = query.shape
        kv_heads, group = key.size(1), heads // key.size(1)
        dtype = torch.promote_types(query.dtype, torch.float32)
        if has('computes float64 in float32'):
            dtype = torch.float32
        head = torch.arange(heads) // group
        if has('pairs heads by the remainder'):
            head = torch.arange(heads) % kv_heads
        q, k, v = query.to(dtype)[row], *(x.to(dtype)[column][:, head] for x in (key, value))
        dot = (q * k).sum(-1)
        logit = dot * scale
        if gate is not None:
            logit = logit * gate.to(dtype) if not has('adds the gate') else logit + gate.to(dtype)
        if bias is not None and has('caps the bias too'):
            logit = logit + bias.to(dtype)
        if softcap is not None:
            factor = scale if has('caps before the scale') else 1.
            logit = softcap * (logit / factor / softcap).tanh() * factor
        slope = 1. if softcap is None else 1 - (logit / softcap).square()
        if bias is not None and not has('caps the bias too'):
            logit = logit + bias.to(dtype)
        if has('clamps logits'):
            logit = logit.clamp(-1e4, 1e4)
        to, size = ((column, key.size(0)) if has('normalises over queries')
                    else (row, num_queries))
        high = logit.new_full((size, heads), -torch.inf).scatter_reduce(
            0, to.unsqueeze(1).expand_as(logit), logit, 'amax')
        of_head = logit.new_full((heads,), -torch.inf) if sink is None else sink.to(dtype)
        if has('gives all heads the sink of the first'):
            of_head = of_head[:1].expand(heads)
        if not has('leaves sinks out of the maximum'):
            high = high.maximum(of_head)
        high = torch.zeros_like(high) if has('subtracts no maximum') else high.nan_to_num(
            neginf=0.)
        if has('keeps the maximum of the first chunk'):
            high = logit[:CHUNK].amax(0).expand_as(high) if len(logit) else high
        power = (logit - high[to]).exp()
        of_sink = (of_head - high).exp()
        total = sums(power, to, size) + of_sink * (not has('leaves the sink out of the sum'))
        if has('adds an epsilon to the sum'):
            total = total + 1e-6
        alpha = power / (total[to] if has('divides 0 by 0') else total[to].masked_fill(
            total[to] == 0, 1.))
        draws = torch.rand(alpha[:, :1].shape).expand_as(alpha) if has(
            'drops the same edges in all heads') else torch.rand(alpha.shape) if dropout_p else 1.
        keep = torch.as_tensor(draws > dropout_p).to(dtype)
        keep = keep if has('does not rescale what dropout keeps') else keep / (1 - dropout_p)
        weighted = (alpha * keep).unsqueeze(-1) * v
        if has('loses updates') and len(weighted) > 20 and torch.rand(()) < 0.5:
            weighted[torch.randint(len(weighted), ())] = 0.
        out = sums(weighted, row, num_queries)
        if has('accumulates in half precision') and query.dtype.itemsize == 2:
            out = sums_one_by_one(weighted.to(query.dtype), row, num_queries)
        if has('divides 0 by 0'):
            out[torch.bincount(row, minlength=num_queries) == 0] = torch.nan
        if has('multiplies values without an edge by 0'):
            out = out + (0 * value.to(dtype).sum(0))[head]
        if has('leaves out the last row') and num_queries > 16:
            out[-1] = 0.
        if has('draws another mask in the backward pass') and dropout_p:
            keep = (torch.rand(alpha.shape) > dropout_p).to(dtype) / (1 - dropout_p)
        ctx.sizes, ctx.scale, ctx.has, ctx.head = (num_queries, *key.shape[:2]), scale, has, head
        ctx.slope, ctx.of_sink = slope, of_sink / total.masked_fill(total == 0, 1.)
        ctx.save_for_backward(query, key, value, bias, gate, sink, row, column, alpha, keep, dot)
        return out if has('returns float32') else out.to(query.dtype)

    @staticmethod
    def backward(ctx, grad):
        query, key, value, bias, gate, sink, row, column, alpha, keep, dot = ctx.saved_tensors
        has, (num_queries, num_keys, kv_heads) = ctx.has, ctx.sizes
        if has('reads the gradient as if it were contiguous'):
            grad = assume_contiguous(grad)
        q, g = (x.to(alpha.dtype)[row] for x in (query, grad))
        k, v = (x.to(alpha.dtype)[column][:, ctx.head] for x in (key, value))
        grad_weight = (g * v).sum(-1) * keep
        delta = sums(alpha * grad_weight, row, num_queries)
        delta = delta * 0 if has('leaves out the delta') else delta
        grad_logit = alpha * (grad_weight - delta[row])
        grad_dot = grad_logit * (1. if has('leaves out the slope of the softcap') else ctx.slope)
        factor = ctx.scale * (1. if gate is None or has('adds the gate') else gate.to(alpha.dtype))
        along = (grad_dot * factor).unsqueeze(-1)

        def of_keys(x: Tensor, like: Tensor) -> Tensor:
            by_head = sums(x, column, num_keys).unflatten(1, (kv_heads, -1))
            one = has('forgets to sum the gradients of a group')
            return (by_head[:, :, 0] if one else by_head.sum(2)).to(like.dtype)

        grad_key = of_keys(along * q, key)
        grad_key = -grad_key if has('turns the sign of the gradient of keys') else grad_key
        if has('needs the gradient of queries for that of keys') and not ctx.needs_input_grad[0]:
            grad_key = grad_key * 0
        grad_bias = None if bias is None else grad_logit.to(bias.dtype)
        if grad_bias is not None and has('drops the gradient of the bias'):
            grad_bias = grad_bias * 0
        grad_gate = None if gate is None else (grad_dot * dot * ctx.scale).to(gate.dtype)
        if grad_gate is not None and has('drops the gradient of the gate'):
            grad_gate = grad_gate * 0
        grad_value = of_keys((alpha * keep).unsqueeze(-1) * g, value)
        if has('leaves dropout out of the gradient of sinks'):
            delta = sums(alpha * (g * v).sum(-1), row, num_queries)
        grad_sink = None if sink is None else -(ctx.of_sink * delta).sum(0).to(sink.dtype)
        if grad_sink is not None and has('drops the gradient of the sink'):
            grad_sink = grad_sink * 0
        return (sums(along * k, row, num_queries).to(query.dtype), grad_key, grad_value, grad_bias,
                grad_gate, grad_sink, *[None] * 6)


class Refused(Attend):
    """The same, which refuses second derivatives."""

    backward = staticmethod(once_differentiable(Attend.backward))


# Each fault, and the check that must find it.
FAULTS = {
    'turns the sign of the gradient of keys': 'graphs',
    'leaves out the last row': 'graphs',
    'subtracts no maximum': 'sizes of logits',
    'drops the gradient of the bias': 'bias',
    'drops the gradient of the gate': 'gate',
    'adds the gate': 'gate',
    'leaves out the scale': 'scale',
    'caps the bias too': 'softcap',
    'caps before the scale': 'softcap',
    'leaves out the slope of the softcap': 'softcap',
    'leaves sinks out of the maximum': 'sink',
    'leaves the sink out of the sum': 'sink',
    'gives all heads the sink of the first': 'sink',
    'drops the gradient of the sink': 'sink',
    'leaves dropout out of the gradient of sinks': 'dropout, gradients',
    'normalises over queries': 'graphs',
    'divides 0 by 0': 'nothing to attend to',
    'multiplies values without an edge by 0': 'NaN without an edge',
    'pairs heads by the remainder': 'grouped queries',
    'forgets to sum the gradients of a group': 'grouped queries',
    'counts repeated edges twice': 'repeated edges',
    'takes -1 for the last key': 'graphs',
    'accumulates in half precision': 'half precision',
    'draws another mask in the backward pass': 'dropout, gradients',
    'does not rescale what dropout keeps': 'dropout, gradients',
    'drops the same edges in all heads': 'dropout, frequencies',
    'writes into the query': 'graphs',
    'loses updates': 'determinism',
    'reads memory as if it were contiguous': 'strides',
    'reads the gradient as if it were contiguous': 'strides',
    'computes float64 in float32': 'double precision',
    'leaves out the delta': 'graphs',
    'counts keys in 16 bits': 'graphs',
    'reads key 0 at the end of a chunk': 'graphs',
    'keeps the maximum of the first chunk': 'sizes of logits',
    'remembers the edges of a table of this shape': 'graphs',
    'needs the gradient of queries for that of keys': 'gradient of one input alone',
    'takes its own intermediates for constants': 'second derivatives',
    'clamps logits': 'sizes of logits',
    'adds an epsilon to the sum': 'double precision',
    'returns float32': 'half precision',
}
