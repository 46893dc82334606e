"""torch's own CSR products, one head at a time: nothing of size edges x channels is ever stored.

Logits are a sampled dense-dense product and the output is a sparse-dense product; both run in MKL
on a CPU and in cuSPARSE on a GPU. Their gradients are products of the same two kinds, written out
here because torch's own go through a dense [queries, keys] matrix.
"""

import warnings

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.kernels.backend import Backend, LogitTerms
from graphattn.kernels.edge_math import edge_logit, edge_softmax, with_first_derivative

with warnings.catch_warnings():
    # torch warns once per process that its CSR layout is in beta: here, where nobody hears it.
    warnings.simplefilter('ignore')
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), dtype=torch.float)


def is_available(device: torch.device) -> bool:
    """Whether torch has its CSR products on ``device``: on CUDA, and on CPUs with MKL."""
    return device.type == 'cuda' or device.type == 'cpu' and torch.backends.mkl.is_available()


not_compiled = torch.compiler.disable(reason="torch's sparse products are not compiled")


@not_compiled
def attention_weights(query: Tensor, key: Tensor, graph: BipartiteGraph,
                      terms: LogitTerms) -> Tensor:
    logit = edge_logit(edge_dot(query, key, graph), terms)
    return edge_softmax(logit, graph.query, graph.num_queries)


@not_compiled
def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    out = [_WeightedSum.apply(weight_h, value_h, graph)
           for weight_h, value_h in zip(weight.unbind(1), value.unbind(1))]
    return with_first_derivative(torch.stack(out, dim=1), 'csr')


@not_compiled
def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """``<query_i, key_j>`` on every edge, ``[num_edges, heads]``, in O(num_edges) memory."""
    if max(graph.num_queries, graph.num_keys, graph.num_edges) >= 2**31:
        raise ValueError(f"backend 'csr' takes sizes below 2^31 (got {graph})")
    dot = [_EdgeDot.apply(query_h, key_h, graph)
           for query_h, key_h in zip(query.unbind(1), key.unbind(1))]
    return with_first_derivative(torch.stack(dot, dim=1), 'csr')


class _EdgeDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.graph = graph
        return _sampled_dot(query, key, graph)

    @staticmethod
    def backward(ctx, grad_dot: Tensor):
        query, key = ctx.saved_tensors
        return (_to_queries(grad_dot, key, ctx.graph), _to_keys(grad_dot, query, ctx.graph), None)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
        ctx.save_for_backward(weight, value)
        ctx.graph = graph
        return _to_queries(weight, value, graph)

    @staticmethod
    def backward(ctx, grad_out: Tensor):
        weight, value = ctx.saved_tensors
        return (_sampled_dot(grad_out, value, ctx.graph), _to_keys(weight, grad_out, ctx.graph),
                None)


def _sampled_dot(at_query: Tensor, at_key: Tensor, graph: BipartiteGraph) -> Tensor:
    pattern = _csr(graph.csr[0], graph.key, at_key.new_zeros(graph.num_edges), graph.num_keys)
    return torch.sparse.sampled_addmm(pattern, at_query, at_key.t()).values()


def _to_queries(edge_weight: Tensor, at_key: Tensor, graph: BipartiteGraph) -> Tensor:
    return _csr(graph.csr[0], graph.key, edge_weight, graph.num_keys) @ at_key


def _to_keys(edge_weight: Tensor, at_query: Tensor, graph: BipartiteGraph) -> Tensor:
    indptr, query, perm = graph.csc
    return _csr(indptr, query.long(), edge_weight[perm], graph.num_queries) @ at_query


def _csr(indptr: Tensor, column: Tensor, values: Tensor, num_columns: int) -> Tensor:
    return torch.sparse_csr_tensor(indptr, column, values.contiguous(),
                                   size=(indptr.numel() - 1, num_columns), check_invariants=False)


BACKEND = Backend('csr', is_available, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=edge_dot)
