"""Attention over several hops, in loops for CPUs: weights once, and a sparse product for each hop.

The forward pass stores the row maximum and the inverse sum of each query and head, and the message
of every hop. The backward pass recomputes the weights in the order by key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.ops.cpu.orders import Orders, groups_of_heads, workspaces
from graphattn.ops.cpu.schedule import Edges
from graphattn.ops.cpu.softmax import Terms
from graphattn.ops.diffusion.cpu_hops import HopGrads, Hops
from graphattn.ops.diffusion.schema import empty_messages
from graphattn.ops.edge_math import grad_of_sink
from graphattn.ops.registration import accumulation_dtype, empty_max_inv_sum, empty_unless
from graphattn.ops.weights.cpu import EdgeGrads, LogitGrads, Logits, of_heads


@torch.library.register_kernel('graphattn::attention_diffusion', 'cpu')
def attention_diffusion_cpu(
    weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    keep_messages: bool,
) -> tuple[Tensor, Tensor]:
    edges = Edges.of_rows(indptr, edge_key)
    out, messages = torch.empty_like(value), empty_messages(value, teleport, keep_messages)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [value] * 4)
    for heads in groups:
        hops = Hops.of(value, teleport, messages, heads, spaces)
        out[:, heads] = hops.diffuse(edges, weight[heads]).transpose(0, 1)
    return out, messages


@torch.library.register_kernel('graphattn::attention_diffusion_backward', 'cpu')
def attention_diffusion_backward_cpu(
    grad_out: Tensor, messages: Tensor, weight: Tensor, value: Tensor, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    needs_weight: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    orders = Orders.of(indptr, edge_key, key_indptr, edge_query, perm)
    grad_weight = weight.new_empty(weight.shape if needs_weight else 0)
    grads = HopGrads.of(value, teleport, needs_teleport)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [value] * 5)
    for heads in groups:
        hops = Hops.of(value, teleport, messages, heads, spaces)
        csc_weight = orders.to_key_order(weight[heads])
        dot = torch.empty_like(csc_weight) if needs_weight else csc_weight[:, :0]
        grads.put(heads, orders.csc, hops, grad_out, csc_weight, dot)
        if needs_weight:
            orders.to_query_order(dot, grad_weight[heads])
    return grad_weight, *grads


@torch.library.register_kernel('graphattn::diffused_attention', 'cpu')
def diffused_attention_cpu(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, gate: Tensor | None,
    sink: Tensor | None, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    seed: Tensor | None, scale: float, softcap: float, dropout_p: float, keep_messages: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    edges, dtype = Edges.of_rows(indptr, edge_key), accumulation_dtype(query)
    out, max_inv_sum = torch.empty_like(value), empty_max_inv_sum(query)
    messages = empty_messages(value, teleport, keep_messages)
    groups = groups_of_heads(query.size(1), edge_key.numel())
    *spaces, weights = workspaces(groups, [query, key] + [value] * 4, [edge_key])
    for heads in groups:
        terms = Terms.of(bias, gate, seed, scale, dropout_p, dtype, heads, query.size(1), softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        hops = Hops.of(value, teleport, messages, heads, spaces[2:])
        weight = weights[:len(logits.query)]
        max_inv_sum[heads] = logits.softmax(edges, weight, of_heads(sink, heads))
        out[:, heads] = hops.diffuse(edges, weight).transpose(0, 1)
    return out, max_inv_sum, messages


@torch.library.register_kernel('graphattn::diffused_attention_backward', 'cpu')
def diffused_attention_backward_cpu(
    grad_out: Tensor, max_inv_sum: Tensor, messages: Tensor,
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, gate: Tensor | None,
    sink: Tensor | None, teleport: Tensor,
    indptr: Tensor, edge_key: Tensor, key_indptr: Tensor, edge_query: Tensor, perm: Tensor,
    seed: Tensor | None, scale: float, softcap: float, dropout_p: float, needs_weight: bool,
    needs_bias: bool, needs_gate: bool, needs_sink: bool, needs_teleport: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    orders = Orders.of(indptr, edge_key, key_indptr, edge_query, perm)
    csc_bias, csc_gate = orders.values_by_key(bias), orders.values_by_key(gate)
    logit_grads = LogitGrads.of(query, key, empty_unless(needs_bias, bias, query),
                                empty_unless(needs_gate, gate, query))
    hop_grads = HopGrads.of(value, teleport, needs_teleport)
    deltas = max_inv_sum.new_empty(max_inv_sum.shape[:2])
    groups = groups_of_heads(query.size(1), edge_key.numel())
    *spaces, weights, dots, grad_logits = workspaces(groups, [query, key] * 2 + [value] * 5,
                                                     [edge_key] * 3)
    dots = dots if needs_weight else dots[:, :0]
    for heads in groups:
        terms = Terms.of(csc_bias, csc_gate, seed, scale, dropout_p, max_inv_sum.dtype, heads,
                         query.size(1), softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        hops = Hops.of(value, teleport, messages, heads, spaces[4:])
        weight, dot, grad_logit = (x[:len(logits.query)] for x in (weights, dots, grad_logits))
        logits.softmax_by_key(orders.csc, weight, max_inv_sum[heads])
        deltas[heads] = delta = hop_grads.put(heads, orders.csc, hops, grad_out, weight, dot)
        if needs_weight:
            logit_grads.put(heads, orders, logits, spaces[2:4],
                            EdgeGrads(weight, max_inv_sum[heads], dot, delta, grad_logit))
    return *logit_grads, grad_of_sink(needs_sink, sink, max_inv_sum, deltas.t()), *hop_grads
