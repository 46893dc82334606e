"""Conversions from and to scipy and networkx, and to torch-sparse."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphattn._checks import check_bool, check_on_edges, check_square

if TYPE_CHECKING:
    import networkx as nx
    from torch_sparse import SparseTensor

    from graphattn.graphs.graph import BipartiteGraph


# scipy ###############################################################################


def from_scipy(cls: type[BipartiteGraph], matrix: sp.sparray | sp.spmatrix) -> BipartiteGraph:
    """Return the graph of a scipy sparse matrix ``[query, key]``, whose nonzero entries are the
    edges."""
    if not sp.issparse(matrix):
        raise TypeError(f"'matrix' must be a scipy sparse array (got {type(matrix).__name__})")
    if matrix.ndim != 2:
        raise ValueError(f"'matrix' must have two dimensions, [query, key] (got shape "
                         f"{matrix.shape})")
    _check_format(matrix)
    coo = matrix.tocoo(copy=True)
    if not getattr(matrix, 'has_canonical_format', False):
        coo.sum_duplicates()  # duplicates are summed, as in scipy
    is_edge = coo.data != 0
    edges = np.stack([coo.col[is_edge], coo.row[is_edge]]).astype(np.int64)
    return cls.from_edge_index(torch.from_numpy(edges), *matrix.shape)


def to_scipy(self: BipartiteGraph, edge_weight: Tensor | None = None) -> sp.csr_array:
    """Return the graph as a float64 CSR array ``[query, key]``. Its values are ones, or
    ``edge_weight`` ``[num_edges]``."""
    _check_weight(self, edge_weight)
    if edge_weight is None:
        edge_weight = torch.ones(self.num_edges, dtype=torch.float64)
    weight = edge_weight.detach().cpu().double().numpy()
    return sp.csr_array((weight, self.key.cpu().numpy(), self.indptr.cpu().numpy()),
                        shape=(self.num_queries, self.num_keys), copy=True)


def _check_format(matrix: sp.sparray | sp.spmatrix) -> None:
    if matrix.format not in ('csr', 'csc', 'bsr'):
        return
    # scipy's compiled loops do not check bounds.
    try:
        copy.copy(matrix).check_format(full_check=True)  # on a copy, because it drops entries
        # scipy does not check this if the last pointer is 0.
        ascends = bool((np.diff(matrix.indptr) >= 0).all())
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"'matrix' must be a valid {matrix.format} array (got a matrix that scipy "
                         f"refuses: {error})") from error
    if not ascends:
        raise ValueError(f"'matrix' must be a valid {matrix.format} array (got an indptr that "
                         f"decreases)")


# networkx ############################################################################


def from_networkx(cls: type[BipartiteGraph], graph: nx.Graph) -> BipartiteGraph:
    """Return the BipartiteGraph of a networkx graph. Nodes are numbered in the order of
    ``graph.nodes``.

    An edge ``(j, i)`` means that query ``i`` attends to key ``j``; an undirected edge means both
    directions. If every node has the attribute ``bipartite`` of networkx, nodes with
    ``bipartite=0`` are the keys, and nodes with ``bipartite=1`` are the queries.

    Raises:
        ValueError: An edge of a bipartite graph does not lead from a key to a query, or only some
            nodes have the attribute ``bipartite``.
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise TypeError(f"'graph' must be a networkx graph (got {type(graph).__name__})")
    role = dict(graph.nodes(data='bipartite'))
    is_bipartite = any(part is not None for part in role.values())
    if is_bipartite and not all(part in (0, 1) for part in role.values()):
        raise ValueError("'graph' must have the node attribute 'bipartite' on all nodes, 0 for "
                         "keys and 1 for queries, or on no node (got a graph with the attribute on "
                         "some nodes)")
    keys = [node for node in graph if not is_bipartite or role[node] == 0]
    queries = [node for node in graph if not is_bipartite or role[node] == 1]
    key_id = {node: j for j, node in enumerate(keys)}
    query_id = {node: i for i, node in enumerate(queries)}
    edges = [(source, target) for source, target, *_ in graph.edges]
    if not graph.is_directed():
        edges += [(target, source) for source, target in edges]
        if is_bipartite:
            from_query_to_key = (1, 0)
            edges = [(source, target) for source, target in edges
                     if (role[source], role[target]) != from_query_to_key]
    for source, target in edges:
        if source not in key_id or target not in query_id:
            raise ValueError(f"'graph' must have only edges from keys (bipartite=0) to queries "
                             f"(bipartite=1) (got the edge ({source!r}, {target!r})); reverse such "
                             f"edges")
    pairs = [(key_id[source], query_id[target]) for source, target in edges]
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    return cls.from_edge_index(edge_index, len(queries), len(keys))


def to_networkx(self: BipartiteGraph, bipartite: bool = False) -> nx.DiGraph:
    """Return a directed networkx graph, in which an edge ``(j, i)`` means that query i attends to
    key j.

    Args:
        bipartite (bool): Whether keys and queries become different nodes: ``('key', j)`` with the
            attribute ``bipartite=0``, and ``('query', i)`` with ``bipartite=1``. Otherwise key i
            and query i are the same node ``i``, and the graph must have equal numbers of keys and
            queries.
    """
    import networkx as nx

    check_bool(bipartite=bipartite)
    edges = zip(self.key.tolist(), self.query.tolist())
    made = nx.DiGraph()
    if bipartite:
        made.add_nodes_from((('key', j) for j in range(self.num_keys)), bipartite=0)
        made.add_nodes_from((('query', i) for i in range(self.num_queries)), bipartite=1)
        made.add_edges_from((('key', j), ('query', i)) for j, i in edges)
    else:
        check_square(self, 'to_networkx', hint='; pass bipartite=True for other graphs')
        made.add_nodes_from(range(self.num_queries))
        made.add_edges_from(edges)
    return made


# torch-sparse ########################################################################


def to_sparse_tensor(self: BipartiteGraph, edge_weight: Tensor | None = None) -> SparseTensor:
    """Return the graph as a ``torch_sparse.SparseTensor`` ``[query, key]``, which is PyG's
    transposed adjacency ``adj_t``. The values of the SparseTensor are ``edge_weight``
    ``[num_edges]``, if given.

    Raises:
        ImportError: torch-sparse is not installed.
    """
    _check_weight(self, edge_weight)
    try:
        from torch_sparse import SparseTensor
    except ImportError as error:
        raise ImportError("to_sparse_tensor needs the package torch-sparse: pip install "
                          "--no-build-isolation torch-sparse") from error
    return SparseTensor(rowptr=self.csr[0], row=self.query, col=self.key, value=edge_weight,
                        sparse_sizes=(self.num_queries, self.num_keys), is_sorted=True,
                        trust_data=True)


def _check_weight(graph: BipartiteGraph, edge_weight: Tensor | None) -> None:
    if edge_weight is not None:
        check_on_edges('edge_weight', edge_weight, graph.num_edges)
