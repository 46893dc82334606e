"""Conversion of graphs from and to PyG's data, and functions that read edges and batches of PyG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphattn._checks import (
    MAX_SIDE,
    check_bool,
    check_has_numbers,
    check_integers,
    check_ptr,
    check_shape,
    check_square,
)
from graphattn._tensors import host_copy, is_traced, row_pointer
from graphattn.graphs.segments import segment_of

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.storage import NodeStorage
    from torch_sparse import SparseTensor

    from graphattn.graphs.graph import BipartiteGraph


def from_data(cls: type[BipartiteGraph], data: Data | HeteroData,
              edge_type: tuple[str, str, str] | None = None) -> BipartiteGraph:
    """Return the graph of a PyG ``Data``, ``HeteroData`` or ``Batch``.

    The source of an edge is the key, and the target is the query. The graphs of a batch become
    segments. Repeated edges are merged. This method is the inverse of :meth:`to_data`. Of ``Data``
    with ``x_s`` and ``x_t``, as in PyG's tutorial on pairs of graphs, the keys are the nodes of
    ``x_s`` and the queries the nodes of ``x_t``.

    Args:
        data (Data or HeteroData): Data with an ``edge_index`` or ``adj_t``, and with ``edge_prob``
            if the edges have probabilities.
        edge_type (tuple of str, optional): The edge type of a ``HeteroData``. It may be omitted if
            the data have only one edge type.

    Raises:
        TypeError: ``data`` is of another type.
        ValueError: ``data`` has no edges, no such edge type, an edge out of range or between two
            graphs, or a ``batch`` that does not ascend.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Batch, Data
        >>> from graphattn import BipartiteGraph
        >>> molecule = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> BipartiteGraph.from_data(Batch.from_data_list([molecule, molecule]))
        BipartiteGraph(num_queries=4, num_keys=4, num_edges=4, num_segments=2, density=50.0%)
    """
    from torch_geometric.data import Batch, Data, HeteroData

    if not isinstance(data, Data | HeteroData):
        raise TypeError(f"'data' must be a PyG Data or HeteroData (got {type(data).__name__})")
    if isinstance(data, HeteroData):
        types = data.edge_types
        chosen = types[0] if edge_type is None and len(types) == 1 else edge_type
        if chosen not in types:
            raise ValueError(f"'edge_type' must be one of {types} (got {edge_type})")
        edges, keys, queries = data[chosen], data[chosen[0]], data[chosen[-1]]
    else:
        if edge_type is not None:
            raise ValueError(f"'edge_type' must be None for a Data, because only a HeteroData has "
                             f"edge types (got {edge_type})")
        if 'x_s' in data and 'x_t' in data and isinstance(data, Batch):
            # Other than a batch of plain Data, its parts number their nodes by x_s and x_t.
            return cls.batch([from_data(cls, part) for part in data.to_data_list()])
        edges = keys = queries = data
    given = edges.get('edge_index', edges.get('adj_t'))
    if given is None:
        raise ValueError(f"'data' must have the attribute 'edge_index' (got {data})")
    edge_index = read_edges(given)
    if edges is data and 'x_s' in data and 'x_t' in data:
        return cls.from_edge_index(edge_index, data.x_t.size(0), data.x_s.size(0),
                                   edge_prob=data.get('edge_prob'))
    query_ptr = ptr_of(queries, edge_index.device)
    key_ptr = query_ptr if keys is queries else ptr_of(keys, edge_index.device)
    return cls.from_edge_index(edge_index, queries.num_nodes, keys.num_nodes,
                               edge_prob=edges.get('edge_prob'), query_ptr=query_ptr,
                               key_ptr=key_ptr)


def to_data(self: BipartiteGraph, bipartite: bool = False) -> Data | HeteroData:
    """Return the graph as PyG's ``Data``, with ``edge_index`` and ``num_nodes``.

    If there are several segments, the data are a PyG ``Batch``, whose ``to_data_list()`` returns
    the data of each segment, or with ``bipartite`` HeteroData with ``batch`` and ``ptr``. If the
    edges have probabilities, the data have ``edge_prob``.

    Args:
        bipartite (bool): Whether to return ``HeteroData`` with edges ``('key', 'to', 'query')``
            between two node types. Otherwise key i and query i are the same node i, and each
            segment must have equal numbers of keys and queries.

    Raises:
        ValueError: ``bipartite`` is false, and a segment has different numbers of keys and queries.
    """
    check_bool(bipartite=bipartite)
    if not bipartite:
        check_square(self, 'to_data', hint='; pass bipartite=True for other graphs')
    from torch_geometric.data import Batch, Data, HeteroData

    # PyG cannot take apart a Batch of HeteroData whose nodes have no features.
    if self.num_segments > 1 and not bipartite:
        return Batch.from_data_list([part.to_data() for part in self.unbatch()])
    data = HeteroData() if bipartite else Data()
    edges = data['key', 'to', 'query'] if bipartite else data
    edges.edge_index = torch.stack([self.key, self.query])
    if self.edge_prob is not None:
        edges.edge_prob = self.edge_prob
    of_nodes = (data['query'], data['key']) if bipartite else (data,)
    for ptr, nodes in zip(self.segments.ptrs, of_nodes):
        nodes.num_nodes = int(ptr[-1])
        if ptr.numel() != 2:
            nodes.ptr, nodes.batch = ptr.clone(), torch.repeat_interleave(ptr.diff())
    return data


def read_edges(edges: Tensor | SparseTensor) -> Tensor:
    """Return ``edge_index``, or ``adj_t`` ``[query, key]``, as a plain ``edge_index`` in the same
    order."""
    if type(edges) is Tensor and edges.layout == torch.strided:
        return edges
    from torch_geometric import EdgeIndex
    from torch_geometric.typing import SparseTensor
    from torch_geometric.utils import is_torch_sparse_tensor, to_edge_index

    if isinstance(edges, SparseTensor):
        query, key, _ = edges.coo()
        return torch.stack([key, query])
    if isinstance(edges, Tensor) and edges.layout == torch.sparse_coo:
        return edges._indices().flip(0)  # PyG's conversion would mark any tensor as coalesced
    if is_torch_sparse_tensor(edges):
        return to_edge_index(edges)[0].flip(0)
    return edges.as_tensor() if isinstance(edges, EdgeIndex) else edges


def ptr_of(nodes: Data | NodeStorage, device: torch.device) -> Tensor:
    """Return where the nodes of each graph of a PyG batch, or of one of its node types, begin."""
    num_nodes, ptr, batch = nodes.num_nodes, nodes.get('ptr'), nodes.get('batch')
    if num_nodes is None:
        raise ValueError(f"'num_nodes' must be set if the nodes have no features, because nodes "
                         f"are otherwise counted by their features (got {nodes}); set "
                         f"data.num_nodes")
    if ptr is None:
        return (torch.tensor([0, num_nodes], device=device) if batch is None
                else ptr_of_batch(batch, num_nodes))
    check_ptr('ptr', ptr, num_nodes, device)
    if batch is not None and not is_traced(batch) and not torch.equal(
            batch, segment_of(ptr, num_nodes)):
        raise ValueError("'batch' must agree with 'ptr' (got nodes that were moved or removed "
                         "after batching); sort the nodes by 'batch', and delete data.ptr")
    return ptr


def ptr_of_batch(batch: Tensor, num_nodes: int) -> Tensor:
    """Return where the nodes of each graph begin, given the index of the graph of each node."""
    check_integers('batch', batch)
    check_has_numbers('batch', batch)
    check_shape('batch', batch, (num_nodes,), ', the index of a graph for each node')
    numbers = host_copy(batch)
    if bool((numbers.diff() < 0).any()):
        raise ValueError("'batch' must ascend, because the nodes of each graph must be adjacent; "
                         "sort the nodes by 'batch'")
    num_graphs = int(numbers[-1]) + 1 if num_nodes else 0
    if num_nodes and int(numbers[0]) < 0 or num_graphs > MAX_SIDE:
        raise ValueError(f"'batch' must number the graphs from 0 without gaps (got "
                         f"{int(numbers[0])} to {num_graphs - 1})")
    return row_pointer(batch, num_graphs)
