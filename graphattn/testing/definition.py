"""The right result of a case, and how far rounding may move it.

Results are ``out`` and, by the names of the inputs, the gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn import ops
from graphattn.functional.attention import edge_attention
from graphattn.functional.checks import scale_of
from graphattn.ops.edge_math import highest_logit
from graphattn.testing.case import Case

ROUNDINGS = 8  # of an exponential, a sum's last steps and a division, in the accumulation's dtype
FLUSHED = 4
HALF_ROUNDINGS = 2  # weights and their gradients may be rounded before products, and results are


def define(case: Case, keep: Tensor | None = None) -> dict[str, Tensor]:
    """Return the right output and gradients in float64 by name, with the dropout mask ``keep``."""
    leaves = {name: x.detach().double().requires_grad_() for name, x in case.inputs.items()}
    out, _ = attend(case, leaves, keep)
    wanted = {name: leaves[name] for name in leaves if name in case.wants}
    grads = torch.autograd.grad(out, list(wanted.values()), case.tensors['cotangent'].double())
    return {'out': out.detach(), **dict(zip(wanted, grads))}


def attend(case: Case, inputs: dict[str, Tensor],
           keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return output and weights of the dense reference, the weights multiplied by ``keep``."""
    out, weight = edge_attention(**inputs, graph=case.graph, scale=case.scale, softcap=case.softcap,
                                 backend='reference', return_attention_weights=True)
    if keep is None:
        return out, weight
    value = inputs['value'].repeat_interleave(case.heads // case.kv_heads, dim=1)
    return ops.load('reference').weighted_sum(weight * keep, value, case.graph), weight


def tolerance(case: Case, keep: Tensor | None = None) -> dict[str, Tensor]:
    """Return the largest error of each result of :func:`define` that rounding can cause."""
    # Let u_a be the epsilon of the accumulation (at least float32), u that of the tensors. A logit,
    # a sum of C products, is off by at most d_ij = u_a (C + 4) (sum_c |q_ic k_jc| |scale gate_ij| +
    # |bias_ij|), a weight relatively by d_ij + sum_j alpha_ij d_ij. A softcap multiplies the error
    # of a product by its slope 1 - tanh^2(x / c), adds ROUNDINGS of the capped product, and its
    # slope, off by ROUNDINGS of 1 and its change within the error of the product, multiplies
    # gradients. A sink is one more term of the mean error, with weight sigma_i and the error of a
    # bias.
    dtype, accumulation = case.dtype, torch.promote_types(case.dtype, torch.float32)
    unit, unit_sum = torch.finfo(dtype).eps, torch.finfo(accumulation).eps
    row, column, group = case.graph.query, case.graph.key.long(), case.heads // case.kv_heads
    finite = {name: _finite(x) for name, x in case.tensors.items()}
    size = {name: x.abs() for name, x in finite.items()}
    signed_query, query, out_grad = (x[row] for x in (finite['query'], size['query'],
                                                      size['cotangent']))
    signed_key, key, value = (x.repeat_interleave(group, dim=1)[column] for x in (
        finite['key'], size['key'], size['value']))

    def sum_of_rows(x: Tensor) -> Tensor:
        return x.new_zeros(case.graph.num_queries, *x.shape[1:]).index_add(0, row, x)

    def sum_of_columns(x: Tensor) -> Tensor:
        by_head = x.new_zeros(case.graph.num_keys, *x.shape[1:]).index_add(0, column, x)
        return by_head.unflatten(1, (case.kv_heads, group)).sum(2)

    scale = scale_of(query) if case.scale is None else case.scale
    signed_gate = finite.get('edge_gate', torch.ones((), dtype=torch.float64)) * scale
    gate, dot = signed_gate.abs(), (query * key).sum(-1)
    signed_product = (signed_query * signed_key).sum(-1) * signed_gate
    rounding = 0. if case.is_exact else unit_sum * (case.channels + 4)
    capped, capped_error, slope, slope_error = _capped(
        signed_product, dot * gate * rounding, unit_sum, case.softcap)
    logit_error = capped_error + size.get('edge_bias', 0.) * rounding
    with_infinity = {name: case.tensors[name].double() for name in ('edge_bias', 'sink')
                     if name in case.tensors}
    alpha = attend(case, {**{name: finite[name] for name in case.inputs},
                          **with_infinity})[1].detach()
    alpha = alpha.nan_to_num()
    sink = with_infinity.get('sink', torch.full((case.heads,), -torch.inf, dtype=torch.float64))
    logit = capped + with_infinity.get('edge_bias', 0.)
    sigma = share_of_sink(logit, sink, row, case.graph.num_queries)
    sink_error = _finite(sink).abs() * rounding
    terms = max([case.channels, case.value_channels, group,
                 *case.graph.in_degree().tolist(), *case.graph.out_degree().tolist()])
    # Sums of n terms add n u_a, exponentials and divisions a few ROUNDINGS. Weights may be rounded
    # before they are multiplied, and the result is rounded: HALF_ROUNDINGS u. Below FLUSHED times
    # the smallest normal number, small weights may be flushed to 0; in float16 they are subnormal.
    mean_logit_error = sum_of_rows(alpha * logit_error) + sigma * sink_error
    relative = HALF_ROUNDINGS * unit + (terms + ROUNDINGS) * unit_sum + mean_logit_error
    underflow = max(FLUSHED * torch.finfo(accumulation).smallest_normal,
                    torch.finfo(dtype).smallest_normal * unit)
    kept = 1. if keep is None else keep
    error = alpha * (relative[row] + logit_error) + underflow
    dropped = error * kept
    product = (out_grad * value).sum(-1) * kept
    mean, mean_error = (sum_of_rows(x * product) for x in (alpha, error))
    grad_error = error * (product + mean[row]) + alpha * mean_error[row]
    product_error = (grad_error * slope
                     + alpha * (product + mean[row]) * slope_error)
    along_query, along_key = ((product_error * gate).unsqueeze(-1) * x for x in (key, query))
    sigma_error = sigma * (relative + sink_error + len(sigma) * unit_sum) + underflow
    # Sums of absolute values, even if terms cancel. With g, the gradient of the output, the error
    # of alpha_ij (g_i v_j - sum_j alpha_ij g_i v_j) multiplies |k_j| for the query and |q_i| for
    # the key. The gradient of a sink is -sum_i sigma_i sum_j alpha_ij g_i v_j.
    bounds = {'out': sum_of_rows(dropped.unsqueeze(-1) * value),
              'query': sum_of_rows(along_query), 'key': sum_of_columns(along_key),
              'value': sum_of_columns(dropped.unsqueeze(-1) * out_grad),
              'edge_bias': grad_error, 'edge_gate': product_error * dot * abs(scale),
              'sink': (sigma_error * mean + sigma * mean_error).sum(0)}
    # What has no terms is exactly 0.
    return {name: bound + underflow * (bound > 0) for name, bound in bounds.items()}


def _capped(product: Tensor, error: Tensor, unit: float, softcap: float | None,
            ) -> tuple[Tensor, Tensor, Tensor | float, Tensor | float]:
    # dot products after a softcap and the derivative of the softcap, each with a bound on its error
    if softcap is None:
        return product, error, 1., 0.
    capped = softcap * (product / softcap).tanh()
    least, most = (product.abs() - error).clamp(min=0), product.abs() + error
    steepest, flattest = (1 - (x / softcap).tanh().square() for x in (least, most))
    return (capped, steepest * error + ROUNDINGS * unit * capped.abs(), steepest,
            steepest - flattest + ROUNDINGS * unit)


def share_of_sink(logit: Tensor, sink: Tensor, row: Tensor, num_queries: int) -> Tensor:
    """Return the share of the attention of each query that sinks take, ``[num_queries, heads]``."""
    highest = highest_logit(logit, row, num_queries).maximum(sink)
    highest = highest.masked_fill(highest == -torch.inf, 0.)
    of_sink = (sink - highest).exp()
    total = of_sink.index_add(0, row, (logit - highest[row]).exp())
    return of_sink / total.masked_fill(total == 0, 1.)


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.).double()
