"""Graphs from PyG's formats of edges. Edges are sorted once for all layers and steps."""

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
from torch_geometric.utils import is_torch_sparse_tensor

from graphattn._tensors import is_traced
from graphattn.graphs.cache import GRAPHS, Name
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pyg_data import read_edges

Edges = BipartiteGraph | Tensor | SparseTensor


class SortedEdges(NamedTuple):
    """A graph, and the permutation from the original order of its edges."""

    graph: BipartiteGraph
    perm: Tensor | None  # int64 [num_edges]; None if the edges were sorted

    def sort(self, values: Tensor | None) -> Tensor | None:
        """Return ``values`` of edges in their original order in the order of the graph's edges."""
        if values is None or self.perm is None:
            return values
        return values.index_select(0, self.perm)  # a third of the time of values[perm]


def sort_edges(edges: Edges, num_queries: int, num_keys: int) -> SortedEdges:
    """Return the graph of edges in any of PyG's formats, and the permutation that sorted the
    edges."""
    # Cached in GRAPHS until the edges are deleted or modified in place, so that all layers and
    # steps share one sort. Changes through .data of over MAX_COMPARED values are not detected.
    find = _find_outside if torch.compiler.is_compiling() else _find
    return find(edges, num_queries, num_keys)


def _find(edges: Edges, num_queries: int, num_keys: int) -> SortedEdges:
    check_edges(edges, 'edge_index')
    _check_sizes(edges, num_queries, num_keys)
    if isinstance(edges, BipartiteGraph):
        return SortedEdges(edges, None)
    edges = edges.as_tensor() if isinstance(edges, EdgeIndex) else edges
    identity = identity_of(edges)
    cache_key = None if identity is None else (*identity, num_queries, num_keys)

    def sort() -> SortedEdges:
        graph, perm = BipartiteGraph.from_edge_index(read_edges(edges), num_queries, num_keys,
                                                     return_perm=True)
        return SortedEdges(graph, perm if graph.is_reordered else None)

    return GRAPHS.get(cache_key, sort)


_find_outside = torch.compiler.disable(_find, reason='edges are sorted, and compared with one '
                                                     'another')


def device_of(edges: Edges) -> torch.device:
    return edges.device() if isinstance(edges, SparseTensor) else edges.device


def edge_index_of(edges: Edges) -> Tensor:
    """Return ``edges`` in any of PyG's formats as ``edge_index``, in the given order."""
    if isinstance(edges, BipartiteGraph):
        return torch.stack([edges.key, edges.query])
    check_edges(edges, 'edge_index')
    return read_edges(edges)


def edge_values_of(edges: Edges) -> Tensor | None:
    """Return the values of a sparse adjacency in the order of :func:`edge_index_of`, or None."""
    if isinstance(edges, SparseTensor):
        return edges.coo()[2]
    if not is_torch_sparse_tensor(edges):
        return None
    if edges.layout != torch.sparse_coo or edges.is_coalesced():
        return edges.values()
    if edges.requires_grad and torch.is_grad_enabled():
        raise ValueError("'edge_index' must be coalesced if its values need a gradient (got an "
                         "uncoalesced sparse Tensor); pass edge_index.coalesce()")
    return edges._values()


def check_edges(edges: Edges, name: str = 'edges') -> Edges:
    """Return ``edges``, or raise a TypeError if they are in none of PyG's formats of edges."""
    if not isinstance(edges, Edges):
        raise TypeError(f"'{name}' must be a Tensor, a SparseTensor or a BipartiteGraph (got "
                        f"{type(edges).__name__})")
    return edges


def _check_sizes(edges: Edges, num_queries: int, num_keys: int) -> None:
    sizes = num_queries, num_keys
    if isinstance(edges, BipartiteGraph):
        sizes = edges.num_queries, edges.num_keys
    elif isinstance(edges, SparseTensor):
        sizes = tuple(edges.sizes()[:2])
    elif is_torch_sparse_tensor(edges):
        sizes = tuple(edges.shape[:2])
    if sizes != (num_queries, num_keys):
        raise ValueError(f"'edge_index' must have {num_queries} queries and {num_keys} keys, as "
                         f"many as 'x' has target and source nodes (got {sizes[0]} and {sizes[1]})")


# Cache keys contain a name that is assigned to each object, because Python reuses addresses.
MAX_COMPARED = 2**16  # number of values; all changes of tensors up to this size are detected
_NUMBERS, _KNOWN, _GONE = count(), WeakIdKeyDictionary(), deque()


class _Known:
    """Record of whether edges in a cache key are still the same."""

    def __init__(self):
        self.name, self._changes, self._copy = Name(f'edges {next(_NUMBERS)}'), 0, None

    def version(self, edges: Edges) -> tuple[int, int]:
        if not isinstance(edges, Tensor):  # other types are immutable
            return 0, 0
        # In-place changes increment the version, but changes through .data or a numpy view do not.
        is_compared = (edges.layout == torch.strided and edges.device.type == 'cpu'
                       and edges.numel() <= MAX_COMPARED)
        if is_compared and (self._copy is None or not torch.equal(self._copy, edges.detach())):
            self._copy = edges.detach().clone()
            self._changes += 1
        return edges._version, self._changes


def identity_of(edges: Edges) -> tuple[Name, tuple[int, int]] | None:
    """Return a cache key for ``edges``, or ``None`` if modifications cannot be detected."""
    # values of objects that have been deleted since the last call
    if _GONE:
        GRAPHS.drop([_GONE.popleft() for _ in range(len(_GONE))])
    if isinstance(edges, Tensor) and (is_traced(edges) or edges.is_inference()):
        return None
    known = _KNOWN.get(edges)
    if known is None:
        _KNOWN[edges] = known = _Known()
        weakref.finalize(edges, _GONE.append, known.name).atexit = False
    return known.name, known.version(edges)
