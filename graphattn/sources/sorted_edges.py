"""PyG's formats of edges as graphs, sorted once for all layers and steps that are given them."""

from __future__ import annotations

import weakref
from collections import deque
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor, to_edge_index

from graphattn._tensors import is_traced
from graphattn.graph import BipartiteGraph
from graphattn.sources.graph_cache import GRAPHS

Edges = BipartiteGraph | Tensor | SparseTensor


class SortedEdges(NamedTuple):
    """A graph, and where its edges stand among those that were given."""

    graph: BipartiteGraph
    perm: Tensor | None  # int64 [num_edges]; None if they were given in the graph's order

    def sort(self, values: Tensor | None) -> Tensor | None:
        """Values on the edges as they were given, on those of the graph."""
        if values is None or self.perm is None:
            return values
        return values.index_select(0, self.perm)  # a third of the time of values[perm]


@torch.compiler.disable(reason='edges are sorted, and compared with one another')
def sort_edges(edges: Edges, num_queries: int, num_keys: int) -> SortedEdges:
    """The graph of edges in any of PyG's formats.

    It is kept for as long as ``edges`` live and are not changed in place, in
    ``graphattn.sources.graph_cache.GRAPHS``: the layers of a model, and its steps, sort them once.

    Args:
        edges (BipartiteGraph, Tensor or SparseTensor): A graph; ``edge_index`` ``[2, num_edges]``,
            key over query, in any order; or the transposed adjacency ``adj_t`` ``[query, key]``,
            as a sparse Tensor of torch or of torch-sparse.
        num_queries (int): Number of queries.
        num_keys (int): Number of keys.

    Raises:
        TypeError: ``edges`` are of another kind.
        RepeatedEdges: An edge is given twice.
        ValueError: Nodes are out of range, or ``edges`` are between other numbers of them.
    """
    _check_kind(edges)
    _check_sizes(edges, num_queries, num_keys)
    if isinstance(edges, BipartiteGraph):
        return SortedEdges(edges, None)
    edges = edges.as_tensor() if isinstance(edges, EdgeIndex) else edges
    identity = identity_of(edges)
    cache_key = None if identity is None else (*identity, num_queries, num_keys)
    return GRAPHS.get(cache_key, lambda: _sort(edges, num_queries, num_keys))


def device_of(edges: Edges) -> torch.device:
    """Where the edges are."""
    return edges.device() if isinstance(edges, SparseTensor) else edges.device


def edge_index_of(edges: Edges) -> Tensor:
    """``edge_index`` ``[2, num_edges]``, key over query, in the order that the edges have."""
    if isinstance(edges, BipartiteGraph):
        return torch.stack([edges.key, edges.query])
    if isinstance(edges, SparseTensor):
        query, key, _ = edges.coo()
        return torch.stack([key, query])
    _check_kind(edges)
    if edges.layout == torch.sparse_coo:  # which PyG would mark as coalesced, whether it is or not
        return edges._indices().flip(0)
    if is_torch_sparse_tensor(edges):
        return to_edge_index(edges)[0].flip(0)
    return edges.as_tensor() if isinstance(edges, EdgeIndex) else edges


def edge_values_of(edges: Edges) -> Tensor | None:
    """The values of a sparse adjacency that has some, in the order of :func:`edge_index_of`."""
    if isinstance(edges, SparseTensor):
        return edges.coo()[2]
    if not is_torch_sparse_tensor(edges):
        return None
    if edges.layout != torch.sparse_coo or edges.is_coalesced():
        return edges.values()
    if edges.requires_grad and torch.is_grad_enabled():
        raise ValueError("'edge_index' must be coalesced for its values to have a gradient (got "
                         "an uncoalesced Tensor); pass its coalesce()")
    return edges._values()


def _check_kind(edges: Edges) -> None:
    if not isinstance(edges, Tensor | SparseTensor | BipartiteGraph):
        raise TypeError(f"'edge_index' must be a Tensor, a SparseTensor or a BipartiteGraph (got "
                        f"{type(edges).__name__})")


def _check_sizes(edges: Edges, num_queries: int, num_keys: int) -> None:
    """That edges which say between how many nodes they are say so of these."""
    sizes = num_queries, num_keys
    if isinstance(edges, BipartiteGraph):
        sizes = edges.num_queries, edges.num_keys
    elif isinstance(edges, SparseTensor):
        sizes = tuple(edges.sizes()[:2])
    elif is_torch_sparse_tensor(edges):
        sizes = tuple(edges.shape[:2])
    if sizes != (num_queries, num_keys):
        raise ValueError(f"'edge_index' must be between {num_queries} queries and {num_keys} keys, "
                         f"the nodes of 'x' (got {sizes[0]} and {sizes[1]})")


def _sort(edges: Tensor | SparseTensor, num_queries: int, num_keys: int) -> SortedEdges:
    graph, perm = BipartiteGraph.from_edge_index(edge_index_of(edges), num_queries, num_keys,
                                                 return_perm=True)
    return SortedEdges(graph, perm if graph.is_reordered else None)


# What is kept is found by a name that objects are given, for addresses are used again.
_KIND = 'edges'
_NUMBERS, _NAME_OF, _GONE = count(), WeakIdKeyDictionary(), deque()


def identity_of(edges: Edges) -> tuple[str, str, int] | None:
    """What stands for these edges as they are now in the key of what is made of them; ``None``
    where changes in place cannot be seen. Once they are gone, so is what was kept under it."""
    gone = {_GONE.popleft() for _ in range(len(_GONE))}
    if gone:
        GRAPHS.drop(lambda key: key[0] == _KIND and not gone.isdisjoint(key))
    is_tensor = isinstance(edges, Tensor)
    if is_tensor and (is_traced(edges) or edges.is_inference()):
        return None
    if edges not in _NAME_OF:
        _NAME_OF[edges] = name = f'{_KIND} {next(_NUMBERS)}'
        weakref.finalize(edges, _GONE.append, name).atexit = False
    version = edges._version if is_tensor else 0  # other kinds are values
    return _KIND, _NAME_OF[edges], version
