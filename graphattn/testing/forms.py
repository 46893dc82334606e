"""Forms in which attention functions take edges: a graph, a mask, indices, a BlockMask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph


class Form(NamedTuple):
    """A form in which attention functions take edges and values on edges."""

    # functions of a graph, and of whether edges are repeated and shuffled; positions: the shape of
    # a tensor with a value for each edge, and the index of each edge in it
    edges: Callable[[BipartiteGraph, bool], Any]
    positions: Callable[[BipartiteGraph], tuple[tuple[int, ...], tuple[Tensor, ...]]]
    code: Callable[[BipartiteGraph, bool], str]
    can_repeat: bool = False


def on_edges(graph: BipartiteGraph) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    return (graph.num_edges,), (torch.arange(graph.num_edges),)


def on_pairs(graph: BipartiteGraph) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    return (graph.num_queries, graph.num_keys), (graph.query, graph.key.long())


def on_slots(graph: BipartiteGraph) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    degree = graph.in_degree()
    slot = torch.arange(graph.num_edges) - graph.indptr[graph.query]
    return (graph.num_queries, max(degree.tolist(), default=0)), (graph.query, slot)


def indices(graph: BipartiteGraph, repeats: bool) -> Tensor:
    """Return the keys of each query, int64 ``[num_queries, K]``, padded by -1."""
    shape, at = on_slots(graph)
    table = torch.full(shape, -1).index_put(at, graph.key.long())
    if not repeats or table.size(1) == 0:
        return table
    # repeats the first key of each query, in reverse order
    return torch.cat([table, torch.full_like(table[:, :1], -1), table[:, :1]], dim=1).flip(1)


def edge_index(graph: BipartiteGraph, repeats: bool) -> Tensor:
    """Return the edges, int64 ``[2, num_edges]`` with keys in row 0."""
    edges = graph.edge_index.as_tensor()
    # repeats every third edge, in reverse order
    return torch.cat([edges, edges[:, ::3]], dim=1).flip(1) if repeats else edges


def graph_code(graph: BipartiteGraph, repeats: bool) -> str:
    edges = graph.edge_index.as_tensor().tolist()
    ptrs = ''.join(f', {name}=torch.tensor({ptr.tolist()})' for name, ptr in (
        ('query_ptr', graph.query_ptr), ('key_ptr', graph.key_ptr)) if graph.num_segments != 1)
    return (f'BipartiteGraph(torch.tensor({edges}, dtype=torch.long), {graph.num_queries}, '
            f'{graph.num_keys}{ptrs})')


def tensor_code(x: Tensor) -> str:
    kind = str(x.dtype)
    if x.numel() == 0:
        return f'torch.empty({tuple(x.shape)}, dtype={kind})'
    return f'torch.tensor({_literal(x.tolist())}, dtype={kind})'


def _literal(values: Any) -> str:
    text = repr(values)
    return text.replace('nan', 'math.nan').replace('inf', 'math.inf')


FORMS = {
    'graph': Form(lambda graph, repeats: graph, on_edges, graph_code),
    'mask': Form(lambda graph, repeats: graph.to_mask(), on_pairs,
                 lambda graph, repeats: tensor_code(graph.to_mask())),
    'indices': Form(indices, on_slots,
                    lambda graph, repeats: tensor_code(indices(graph, repeats)), can_repeat=True),
    'block_mask': Form(lambda graph, repeats: graph.to_block_mask(), on_pairs,
                       lambda graph, repeats: f'{graph_code(graph, repeats)}.to_block_mask()'),
    'edge_index': Form(edge_index, on_edges,
                       lambda graph, repeats: tensor_code(edge_index(graph, repeats)),
                       can_repeat=True),
}
