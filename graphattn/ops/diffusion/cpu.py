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
from graphattn.ops.diffusion.schema import empty_results, needs_weights
from graphattn.ops.registration import accumulation_dtype, empty_max_inv_sum, implement
from graphattn.ops.weights.cpu import EdgeGrads, LogitGrads, Logits, of_heads
from graphattn.ops.weights.schema import grad_of_sink


@implement('attention_diffusion', 'cpu')
def attention_diffusion_cpu(given) -> tuple[Tensor, Tensor]:
    weight, value, edges = given.weight, given.value, Edges.of_rows(given.indptr, given.edge_key)
    out, messages = empty_results(given)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [value] * 4)
    for heads in groups:
        hops = Hops.of(value, given.teleport, messages, heads, spaces)
        out[:, heads] = hops.diffuse(edges, weight[heads]).transpose(0, 1)
    return out, messages


@implement('attention_diffusion_backward', 'cpu')
def attention_diffusion_backward_cpu(given) -> tuple[Tensor | None, ...]:
    weight, value, orders = given.weight, given.value, Orders.of(given)
    grad_weight = weight.new_empty(weight.shape) if given.needs_weight else None
    grads = HopGrads.of(given)
    groups = groups_of_heads(*weight.shape)
    spaces = workspaces(groups, [value] * 5)
    for heads in groups:
        hops = Hops.of(value, given.teleport, given.messages, heads, spaces)
        csc_weight = orders.to_key_order(weight[heads])
        dot = torch.empty_like(csc_weight) if given.needs_weight else csc_weight[:, :0]
        grads.put(heads, orders.csc, hops, given.grad_out, csc_weight, dot)
        if given.needs_weight:
            orders.to_query_order(dot, grad_weight[heads])
    return grad_weight, *grads


@implement('diffused_attention', 'cpu')
def diffused_attention_cpu(given) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = given.query, given.key, given.value
    edges, dtype = Edges.of_rows(given.indptr, given.edge_key), accumulation_dtype(query)
    (out, messages), max_inv_sum = empty_results(given), empty_max_inv_sum(query)
    groups = groups_of_heads(query.size(1), len(edges.column))
    *spaces, weights = workspaces(groups, [query, key] + [value] * 4, [given.edge_key])
    for heads in groups:
        terms = Terms.of(given.bias, given.gate, given.seed, given.scale, given.dropout_p, dtype,
                         heads, query.size(1), given.softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        hops = Hops.of(value, given.teleport, messages, heads, spaces[2:])
        weight = weights[:len(logits.query)]
        max_inv_sum[heads] = logits.softmax(edges, weight, of_heads(given.sink, heads))
        out[:, heads] = hops.diffuse(edges, weight).transpose(0, 1)
    return out, max_inv_sum, messages


@implement('diffused_attention_backward', 'cpu')
def diffused_attention_backward_cpu(given) -> tuple[Tensor | None, ...]:
    query, key, value, max_inv_sum = given.query, given.key, given.value, given.max_inv_sum
    orders, needs_weight = Orders.of(given), needs_weights(given)
    csc_bias, csc_gate = orders.values_by_key(given.bias), orders.values_by_key(given.gate)
    logit_grads, hop_grads = LogitGrads.of(given), HopGrads.of(given)
    deltas = max_inv_sum.new_empty(max_inv_sum.shape[:2])
    groups = groups_of_heads(query.size(1), given.edge_key.numel())
    *spaces, weights, dots, grad_logits = workspaces(groups, [query, key] * 2 + [value] * 5,
                                                     [given.edge_key] * 3)
    dots = dots if needs_weight else dots[:, :0]
    for heads in groups:
        terms = Terms.of(csc_bias, csc_gate, given.seed, given.scale, given.dropout_p,
                         max_inv_sum.dtype, heads, query.size(1), given.softcap)
        logits = Logits.of(query, key, terms, heads, spaces[:2])
        hops = Hops.of(value, given.teleport, given.messages, heads, spaces[4:])
        weight, dot, grad_logit = (x[:len(logits.query)] for x in (weights, dots, grad_logits))
        logits.softmax_by_key(orders.csc, weight, max_inv_sum[heads])
        deltas[heads] = delta = hop_grads.put(heads, orders.csc, hops, given.grad_out, weight, dot)
        if needs_weight:
            logit_grads.put(heads, orders, logits, spaces[2:4],
                            EdgeGrads(weight, max_inv_sum[heads], dot, delta, grad_logit))
    return *logit_grads, grad_of_sink(given, deltas.t()), *hop_grads
