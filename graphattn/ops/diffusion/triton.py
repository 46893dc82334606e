"""Attention over several hops in Triton: weights once, and a sparse product for each hop."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.diffusion.schema import empty_results, needs_weights
from graphattn.ops.edge_math import restart
from graphattn.ops.registration import accumulation_dtype, implement
from graphattn.ops.triton.rows import Rows
from graphattn.ops.triton.softmax import Terms
from graphattn.ops.weights.schema import grad_of_sink
from graphattn.ops.weights.triton import BothOrders, grads_of_logits, row_max_inv_sum
from graphattn.ops.weights.triton_rows import dot_rows, sum_rows, weigh


@implement('attention_diffusion', 'cuda')
def attention_diffusion_cuda(given) -> tuple[Tensor, Tensor]:
    rows = Rows.of(given.indptr, given.edge_key, len(given.value))
    return diffuse(given.weight, given, rows)


@implement('attention_diffusion_backward', 'cuda')
def attention_diffusion_backward_cuda(given) -> tuple[Tensor | None, ...]:
    return hop_grads(given.weight, given, BothOrders.of(given), given.needs_weight)


@implement('diffused_attention', 'cuda')
def diffused_attention_cuda(given) -> tuple[Tensor, Tensor, Tensor]:
    query, key = given.query, given.key
    rows = Rows.of(given.indptr, given.edge_key, len(key))
    terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p,
                     given.softcap)
    max_inv_sum = row_max_inv_sum(query, key, rows, terms, given.sink)
    out, messages = diffuse(weigh(query, key, rows, terms, max_inv_sum), given, rows)
    return out, max_inv_sum.transpose(0, 1).contiguous(), messages


@implement('diffused_attention_backward', 'cuda')
def diffused_attention_backward_cuda(given) -> tuple[Tensor | None, ...]:
    query, key, both, needs_weight = (given.query, given.key, BothOrders.of(given),
                                      needs_weights(given))
    terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p,
                     given.softcap)
    by_query = given.max_inv_sum.transpose(0, 1).contiguous()
    weight = weigh(query, key, both.csr, terms, by_query)
    grad_weight, *hops = hop_grads(weight, given, both, needs_weight)
    if not needs_weight:
        return None, None, None, None, None, *hops
    if given.seed is not None:
        weight = weigh(query, key, both.csr, terms._replace(seed=None), by_query)
    grad_logit, delta = grads_of_logits(weight, grad_weight, both.csr, terms)
    return *both.grads(grad_logit, given), grad_of_sink(given, delta), *hops


def diffuse(weight: Tensor, given, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the values after all hops, and the messages, empty unless they are kept."""
    # weight: [heads, num_edges]; of given, value: [nodes, heads, channels]; teleport: [hops, nodes,
    # heads]
    value, teleport, (_, messages) = given.value, given.teleport, empty_results(given)
    dtype = accumulation_dtype(value)
    start = z = value.to(dtype)
    for hop in reversed(range(len(teleport))):
        # The first hop gathers the original values: in half precision, this reads fewer bytes.
        message = sum_rows(weight, value if z is start else z, rows, dtype)
        if len(messages):
            messages[hop] = message.transpose(0, 1)
        z = restart(message, start, teleport[hop].unsqueeze(-1))
    return z.to(value.dtype), messages


def hop_grads(weight: Tensor, given, both: BothOrders,
              needs_weight: bool) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Return the gradients of weights, values and teleports, None where not needed."""
    messages, value, teleport, dtype = (given.messages, given.value, given.teleport,
                                        accumulation_dtype(given.value))
    start, grad = value.to(dtype), given.grad_out.to(dtype)
    grad_weight = torch.zeros_like(weight) if needs_weight else None
    grad_teleport = teleport.new_empty(teleport.shape) if given.needs_teleport else None
    grad_start = torch.zeros_like(start)
    csc_weight = weight[:, both.perm]
    for hop in range(len(teleport)):
        to_start = teleport[hop].unsqueeze(-1)
        if given.needs_teleport:
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
