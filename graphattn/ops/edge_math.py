"""Arithmetic on edges in plain torch: logits, softmax, sinks, features, dropout and hops."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._splitmix import STEP, mix_tensor, signed
from graphattn._tensors import stands_for_many
from graphattn.ops.backend import EdgeFeatures, LogitTerms


def edge_logit(dot: Tensor, terms: LogitTerms) -> Tensor:
    """Return ``softcap(gate * dot * scale) + bias``, ``[num_edges, heads]``."""
    logit = dot * terms.scale
    if terms.gate is not None:
        logit = logit * terms.gate
    if terms.softcap is not None:
        logit = terms.softcap * (logit / terms.softcap).tanh()
    return logit if terms.bias is None else logit + terms.bias


def edge_softmax(logit: Tensor, query: Tensor, num_queries: int,
                 sink: Tensor | None = None) -> Tensor:
    """Return the softmax of logits ``[num_edges, heads]`` over the edges of each query."""
    # query: in any order; sink: one more logit, [num_queries or 1, heads]
    row_max = highest_logit(logit, query, num_queries)
    row_max = row_max if sink is None else row_max.maximum(sink.detach())
    row_max = torch.where(row_max == -torch.inf, 0., row_max)  # avoids -inf - -inf
    weight = (logit - row_max.index_select(0, query)).exp()
    row_sum = torch.zeros_like(row_max) if sink is None else (sink - row_max).exp()
    row_sum = row_sum.index_add(0, query, weight)
    # 0 where all logits of a query are -inf
    return weight / torch.where(row_sum == 0, 1., row_sum).index_select(0, query)


def take_sink(sink: Tensor | None, max_inv_sum: Tensor, *sums: Tensor) -> None:
    """Add the sinks, one more logit of each query, to sums of a softmax without them, in place."""
    if sink is not None:
        rest = rest_of_sink(sink, max_inv_sum).unsqueeze(-1)
        for x in sums:
            x *= rest


def rest_of_sink(sink: Tensor, max_inv_sum: Tensor) -> Tensor:
    """Add sinks to ``max_inv_sum`` in place, and return 1 minus their weights."""
    # sink: broadcastable to max_inv_sum[..., 0], the maximum logit m; [..., 1]: 1 over the sum of
    # exp(logit - m)
    row_max, inv_sum = max_inv_sum.unbind(-1)
    rest = (row_max - sink - inv_sum.log()).sigmoid()  # never inf * 0
    inv_sum *= rest
    return rest


def sink_grad(sink: Tensor, max_inv_sum: Tensor, delta: Tensor) -> Tensor:
    # max_inv_sum: sink included, [num_queries, heads, 2]; delta: the sum of weight times gradient
    # of the weight of each query, [num_queries, heads]
    row_max, inv_sum = max_inv_sum.unbind(-1)
    weight = (sink - row_max + inv_sum.log()).exp()  # a product might be inf * 0
    return -(weight * delta).sum_to_size(sink.shape).to(sink.dtype)


def highest_logit(logit: Tensor, query: Tensor, num_queries: int) -> Tensor:
    """Return the largest logit of each query, ``-inf`` without edges, not differentiable."""
    row_max = logit.detach().new_full((num_queries, logit.size(1)), -torch.inf)
    return row_max.scatter_reduce(0, query.unsqueeze(1).expand_as(logit), logit.detach(), 'amax')


def dot_with_features(features: EdgeFeatures, query: Tensor) -> Tensor:
    """Return ``<features.query, features.attr>`` of each edge, ``[num_edges, heads]``."""
    # head by head, to save memory
    return torch.stack([(at_query.index_select(0, query) * features.attr).sum(-1)
                        for at_query in features.query.unbind(1)], dim=1)


def sum_features(weight: Tensor, features: EdgeFeatures, query: Tensor) -> Tensor:
    """Return the weighted sum of the features of each query, ``[num_queries, heads, size]``."""
    nothing = weight.new_zeros(len(features.query), features.attr.size(1))
    return torch.stack([nothing.index_add(0, query, of_head.unsqueeze(1) * features.attr)
                        for of_head in weight.unbind(1)], dim=1)


def drop_out(weight: Tensor, seed: Tensor, dropout_p: float) -> Tensor:
    """Return weights ``[num_edges, heads]`` after dropout."""
    # a hash of seed, edge and head decides, so fused kernels drop the same weights
    number = torch.arange(1, weight.numel() + 1, device=weight.device).view_as(weight)
    bits = mix_tensor(seed + number * signed(STEP))
    # The bits are unsigned, but torch compares signed integers: both sides are shifted by -2**63.
    is_kept = bits ^ -2**63 >= int(dropout_p * 2**64) - 2**63
    return weight * (is_kept.to(weight.dtype) / (1 - dropout_p))


def with_first_derivative(out: Tensor, backend: str) -> Tensor:
    """Return ``out`` such that second derivatives raise an error that names ``backend``."""
    # torch would treat the second derivatives of kernels as 0
    return _OfFirstOrder.apply(out, backend)


class _OfFirstOrder(torch.autograd.Function):
    # A hook would also fire when callers ask for the gradient of the tensor itself.
    @staticmethod
    def forward(ctx, out, backend):
        ctx.backend = backend
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise no_second_derivative(ctx.backend)
        if stands_for_many(grad):
            raise NotImplementedError(f"backend {ctx.backend!r} differentiates one output gradient "
                                      f"at a time (got is_grads_batched=True or torch.vmap); pass "
                                      f"backend='gather'")
        return grad, None


def no_second_derivative(backend: str) -> NotImplementedError:
    return NotImplementedError(f"backend {backend!r} has no second derivative; pass "
                               f"backend='gather', which supports all derivatives")


def restart(message: Tensor, start: Tensor, teleport: Tensor) -> Tensor:
    """Return ``(1 - teleport) * message + teleport * start``, the values after a hop."""
    mixed = (1 - teleport) * message + teleport * start
    # With a teleport of 0, a non-finite start must not reach the result. Other entries are not
    # masked, because the gradient of a teleport of 0 is not 0.
    return torch.where(start.isfinite() | (teleport != 0), mixed, message)
