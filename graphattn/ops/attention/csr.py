"""Attention by torch's products of CSR matrices, for all heads at once, without tensors of size
edges x channels.

The dot products on edges are a sampled dense-dense product, and the output is a sparse-dense
product. Both run in MKL on a CPU and in cuSPARSE on a GPU. Their gradients are products of the same
two kinds. They are implemented here, because torch's gradients use a dense [queries, keys] matrix.
"""

import warnings

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import Backend, LogitTerms
from graphattn.ops.edge_math import edge_logit, edge_softmax, with_first_derivative

with warnings.catch_warnings():
    # torch warns once per process that its CSR layout is in beta. This call triggers the warning
    # while warnings are hidden.
    warnings.simplefilter('ignore')
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), dtype=torch.float,
                            device='cpu')


def is_available(device: torch.device) -> bool:
    """Return whether torch has CSR products on ``device``: on CUDA, and on CPUs with MKL."""
    return device.type == 'cuda' or device.type == 'cpu' and torch.backends.mkl.is_available()


not_compiled = torch.compiler.disable(reason="torch's sparse products are not compiled")


@not_compiled
def attention_weights(query: Tensor, key: Tensor, graph: BipartiteGraph,
                      terms: LogitTerms) -> Tensor:
    logit = edge_logit(edge_dot(query, key, graph), terms)
    return edge_softmax(logit, graph.query, graph.num_queries, terms.sink)


@not_compiled
def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    check_sizes(graph, value.size(1))
    return with_first_derivative(_WeightedSum.apply(weight, value, graph), 'csr')


@not_compiled
def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """Return the dot product ``<query_i, key_j>`` of each edge, ``[num_edges, heads]``, in
    O(num_edges) memory."""
    check_sizes(graph, query.size(1))
    return with_first_derivative(_EdgeDot.apply(query, key, graph), 'csr')


def check_sizes(graph: BipartiteGraph, heads: int) -> None:
    if heads * max(graph.num_queries, graph.num_keys, graph.num_edges) >= 2**31:
        raise ValueError(f"backend 'csr' needs sizes times heads below 2^31 (got {heads} heads of "
                         f"{graph})")


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
    pattern = _csr(graph.csr[0], graph.key, at_key.new_zeros(graph.num_edges, at_key.size(1)),
                   graph.num_keys)
    dot = torch.sparse.sampled_addmm(pattern, _folded(at_query), _folded(at_key).t()).values()
    return dot.view(at_key.size(1), graph.num_edges).t().contiguous()


def _to_queries(edge_weight: Tensor, at_key: Tensor, graph: BipartiteGraph) -> Tensor:
    return _product(_csr(graph.csr[0], graph.key, edge_weight, graph.num_keys), at_key)


def _to_keys(edge_weight: Tensor, at_query: Tensor, graph: BipartiteGraph) -> Tensor:
    indptr, query, perm = graph.csc
    return _product(_csr(indptr, query.long(), edge_weight[perm], graph.num_queries), at_query)


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    out = matrix @ _folded(x)
    return out.unflatten(0, (x.size(1), len(out) // x.size(1))).transpose(0, 1)


def _folded(x: Tensor) -> Tensor:
    """Return vectors ``[nodes, heads, channels]`` as ``[heads * nodes, channels]``, beginning with
    the nodes of head 0."""
    return x.transpose(0, 1).flatten(0, 1)


def _csr(indptr: Tensor, column: Tensor, values: Tensor, num_columns: int) -> Tensor:
    """Return a sparse CSR matrix with one diagonal block for each head. All blocks have the pattern
    of ``indptr`` and ``column``, with ``num_columns`` columns. ``values`` is ``[num_edges,
    heads]``."""
    num_edges, heads = values.shape
    head = torch.arange(heads, device=indptr.device).unsqueeze(1)
    indptr = torch.cat([(indptr[:-1] + num_edges * head).flatten(),
                        indptr.new_full((1,), heads * num_edges)])
    size = (indptr.numel() - 1, heads * num_columns)
    return torch.sparse_csr_tensor(indptr, (column + num_columns * head).flatten(),
                                   values.t().reshape(-1), size=size, check_invariants=False)


BACKEND = Backend('csr', is_available, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=edge_dot)
