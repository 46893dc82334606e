"""Attention over several hops in Triton: weights once, and a sparse product for each hop."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.diffusion.schema import empty_messages
from graphattn.ops.edge_dot.triton import dot_rows
from graphattn.ops.edge_math import grad_of_sink, restart
from graphattn.ops.registration import accumulation_dtype, empty_unless
from graphattn.ops.triton.rows import Rows
from graphattn.ops.triton.softmax import Terms
from graphattn.ops.weights.triton import (
    BothOrders,
    grads_of_logits,
    row_max_inv_sum,
    weigh,
)
from graphattn.ops.weights.triton_weighted_sum import sum_rows


@torch.library.register_kernel('graphattn::attention_diffusion', 'cuda')
def attention_diffusion_cuda(
    weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    keep_messages: bool,
) -> tuple[Tensor, Tensor]:
    messages = empty_messages(value, teleport, keep_messages)
    rows = Rows.of(indptr, edge_key, len(value))
    return diffuse(weight, value, teleport, rows, messages), messages


@torch.library.register_kernel('graphattn::attention_diffusion_backward', 'cuda')
def attention_diffusion_backward_cuda(
    grad_out: Tensor, messages: Tensor, weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    needs_weight: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    both = BothOrders.of(indptr, edge_key, key_indptr, edge_query, perm)
    return hop_grads(grad_out, messages, weight, value, teleport, both, needs_weight,
                     needs_teleport)


@torch.library.register_kernel('graphattn::diffused_attention', 'cuda')
def diffused_attention_cuda(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, gate: Tensor | None,
    sink: Tensor | None, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    seed: Tensor | None, scale: float, softcap: float, dropout_p: float, keep_messages: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = Rows.of(indptr, edge_key, len(key))
    terms = Terms.of(bias, gate, seed, scale, dropout_p, softcap)
    max_inv_sum = row_max_inv_sum(query, key, rows, terms, sink)
    messages = empty_messages(value, teleport, keep_messages)
    out = diffuse(weigh(query, key, rows, terms, max_inv_sum), value, teleport, rows, messages)
    return out, max_inv_sum.transpose(0, 1).contiguous(), messages


@torch.library.register_kernel('graphattn::diffused_attention_backward', 'cuda')
def diffused_attention_backward_cuda(
    grad_out: Tensor, max_inv_sum: Tensor, messages: Tensor,
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, gate: Tensor | None,
    sink: Tensor | None, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    seed: Tensor | None, scale: float, softcap: float, dropout_p: float, needs_weight: bool,
    needs_bias: bool, needs_gate: bool, needs_sink: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    both = BothOrders.of(indptr, edge_key, key_indptr, edge_query, perm)
    terms = Terms.of(bias, gate, seed, scale, dropout_p, softcap)
    by_query = max_inv_sum.transpose(0, 1).contiguous()
    weight = weigh(query, key, both.csr, terms, by_query)
    grad_weight, grad_value, grad_teleport = hop_grads(
        grad_out, messages, weight, value, teleport, both, needs_weight, needs_teleport)
    if not needs_weight:
        nothing = empty_unless(False, None, query)
        return (torch.empty_like(query), torch.empty_like(key), nothing, nothing.clone(),
                nothing.clone(), grad_value, grad_teleport)
    if seed is not None:
        weight = weigh(query, key, both.csr, terms._replace(seed=None), by_query)
    grad_logit, delta = grads_of_logits(weight, grad_weight, both.csr, terms)
    return (*both.grads(grad_logit, query, key, bias if needs_bias else None, gate, scale, softcap,
                        needs_gate), grad_of_sink(needs_sink, sink, max_inv_sum, delta),
            grad_value, grad_teleport)


def diffuse(weight: Tensor, value: Tensor, teleport: Tensor, rows: Rows,
            messages: Tensor) -> Tensor:
    """Return the values after all hops, and write their messages unless ``messages`` is empty."""
    # weight: [heads, num_edges]; value: [nodes, heads, channels]; teleport: [hops, nodes, heads];
    # messages: [hops, heads, nodes, channels]
    dtype = accumulation_dtype(value)
    start = z = value.to(dtype)
    for hop in reversed(range(len(teleport))):
        # The first hop gathers the original values: in half precision, this reads fewer bytes.
        message = sum_rows(weight, value if z is start else z, rows, dtype)
        if len(messages):
            messages[hop] = message.transpose(0, 1)
        z = restart(message, start, teleport[hop].unsqueeze(-1))
    return z.to(value.dtype)


def hop_grads(grad_out: Tensor, messages: Tensor, weight: Tensor, value: Tensor, teleport: Tensor,
              both: BothOrders, needs_weight: bool,
              needs_teleport: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of weights, values and teleports, empty where not needed."""
    dtype = accumulation_dtype(value)
    start, grad = value.to(dtype), grad_out.to(dtype)
    grad_weight = torch.zeros_like(weight) if needs_weight else weight.new_empty(0)
    grad_teleport = teleport.new_empty(teleport.shape if needs_teleport else 0)
    grad_start = torch.zeros_like(start)
    csc_weight = weight[:, both.perm]
    for hop in range(len(teleport)):
        to_start = teleport[hop].unsqueeze(-1)
        if needs_teleport:
            message = messages[hop].transpose(0, 1)
            grad_teleport[hop] = (grad * start).sum(-1) - (grad * message).sum(-1)
        grad_start += to_start * grad
        grad = (1 - to_start) * grad
        if needs_weight:
            dot_rows(grad, _before(hop, messages, value, start, teleport), both.csr, grad_weight,
                     add=True)
        grad = sum_rows(csc_weight, grad, both.csc, dtype)
    return grad_weight, (grad_start + grad).to(value.dtype), grad_teleport


def _before(hop: int, messages: Tensor, value: Tensor, start: Tensor, teleport: Tensor) -> Tensor:
    # hops count down to 0
    if hop == len(teleport) - 1:
        return value
    return restart(messages[hop + 1].transpose(0, 1), start, teleport[hop + 1].unsqueeze(-1))
