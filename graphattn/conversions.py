"""Edges read from and written to other people's formats, without looking at a graph of ours."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from graphattn._checks import check_has_numbers, check_strided

if TYPE_CHECKING:
    from torch_sparse import SparseTensor


def edges_of_mask(mask: Tensor) -> Tensor:
    """The ``True`` entries of a mask ``[query, key]``, int64 ``[2, num_edges]``, sorted."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"'mask' must be a boolean Tensor, True = attend (got {kind}); an "
                        f"additive mask converts by mask == 0")
    check_strided('mask', mask)
    check_has_numbers('mask', mask)
    if mask.dim() != 2:
        raise ValueError(f"'mask' must be [query, key] (got shape {tuple(mask.shape)}); join "
                         f"several with BipartiteGraph.batch")
    query, key = mask.nonzero().t()
    return torch.stack([key, query])


def edges_of_scipy(matrix: sp.sparray | sp.spmatrix) -> Tensor:
    """The nonzero entries of a sparse matrix ``[query, key]``, int64 ``[2, num_edges]``."""
    if not sp.issparse(matrix):
        raise TypeError(f"'matrix' must be a scipy sparse array (got {type(matrix).__name__})")
    if matrix.ndim != 2:
        raise ValueError(f"'matrix' must be [query, key] (got shape {matrix.shape})")
    _check_format(matrix)
    coo = matrix.tocoo()
    attends = coo.data != 0
    edges = np.stack([coo.col[attends], coo.row[attends]]).astype(np.int64)
    return torch.from_numpy(edges)


def _check_format(matrix: sp.sparray | sp.spmatrix) -> None:
    """That a matrix holds what it says: scipy's compiled loops read and write elsewhere if not."""
    if matrix.format not in ('csr', 'csc', 'bsr'):
        return
    try:
        copy.copy(matrix).check_format(full_check=True)  # which drops what is beyond the last row
        ascends = bool((np.diff(matrix.indptr) >= 0).all())  # not looked at where the last is 0
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"'matrix' is no whole {matrix.format} array: {error}") from error
    if not ascends:
        raise ValueError(f"'matrix' is no whole {matrix.format} array: its indptr decreases")


def scipy_of_rows(indptr: Tensor, key: Tensor, num_keys: int,
                  edge_weight: Tensor | None) -> sp.csr_array:
    """A float64 array ``[query, key]`` of ones, or of the weights."""
    if edge_weight is None:
        edge_weight = torch.ones(key.numel(), dtype=torch.float64)
    weight = edge_weight.detach().cpu().double().numpy()
    return sp.csr_array((weight, key.cpu().numpy(), indptr.cpu().numpy()),
                        shape=(indptr.numel() - 1, num_keys), copy=True)


def cuthill_mckee_of_rows(indptr: Tensor, key: Tensor, num_keys: int) -> Tensor:
    """An order of the tokens, int64, in which edges in either direction join near ones."""
    matrix = scipy_of_rows(indptr, key, num_keys, None)
    order = reverse_cuthill_mckee(matrix, symmetric_mode=False)
    return torch.from_numpy(order.astype(np.int64)).to(indptr.device)


def edges_of_networkx(graph: nx.Graph) -> tuple[Tensor, int, int]:
    """Edges, int64 ``[2, num_edges]``, and how many queries and keys there are."""
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"'graph' must be a networkx graph (got {type(graph).__name__})")
    role = dict(graph.nodes(data='bipartite'))
    is_bipartite = any(part is not None for part in role.values())
    if is_bipartite and not all(part in (0, 1) for part in role.values()):
        raise ValueError("'graph' must give every node the attribute bipartite, 0 for a key or 1 "
                         "for a query, or none")
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
            raise ValueError(f"'graph' is bipartite, but its edge ({source!r}, {target!r}) does "
                             f"not run from a key (bipartite=0) to a query (bipartite=1)")
    pairs = [(key_id[source], query_id[target]) for source, target in edges]
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    return edge_index, len(queries), len(keys)


def networkx_of_tokens(edge_index: Tensor, num_tokens: int) -> nx.DiGraph:
    """Key and query i as the one node ``i``."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(num_tokens))
    graph.add_edges_from(edge_index.t().tolist())
    return graph


def networkx_of_parts(edge_index: Tensor, num_queries: int, num_keys: int) -> nx.DiGraph:
    """Nodes ``('key', j)`` and ``('query', i)`` with networkx's ``bipartite`` attribute."""
    graph = nx.DiGraph()
    graph.add_nodes_from((('key', j) for j in range(num_keys)), bipartite=0)
    graph.add_nodes_from((('query', i) for i in range(num_queries)), bipartite=1)
    graph.add_edges_from((('key', j), ('query', i)) for j, i in edge_index.t().tolist())
    return graph


def sparse_tensor_of_rows(indptr: Tensor, query: Tensor, key: Tensor, num_keys: int,
                          edge_weight: Tensor | None) -> SparseTensor:
    """A ``torch_sparse.SparseTensor`` ``[query, key]``."""
    try:
        from torch_sparse import SparseTensor
    except ImportError as error:
        raise ImportError("to_sparse_tensor needs torch-sparse: pip install --no-build-isolation "
                          "torch-sparse") from error
    return SparseTensor(rowptr=indptr, row=query, col=key, value=edge_weight,
                        sparse_sizes=(indptr.numel() - 1, num_keys), is_sorted=True,
                        trust_data=True)
