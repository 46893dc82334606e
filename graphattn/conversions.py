"""Edges read from and written to other people's formats, without looking at a graph of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from graphattn._checks import check_has_numbers, check_strided

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
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


def block_mask_of_rows(indptr: Tensor, key: Tensor, num_keys: int, heads: int,
                       tile: int, is_compact: bool) -> BlockMask:
    """FlexAttention's mask of heads that own equal parts of the nodes: the tiles of ``tile`` x
    ``tile`` pairs that hold edges, and a search for the pairs inside of them."""
    from torch.nn.attention.flex_attention import BlockMask

    num_queries = indptr.numel() - 1
    of_head = num_queries // heads, num_keys // heads
    num_tiles = [-(-size // tile) for size in of_head]
    head, query, key_in_head = _in_heads(indptr, key, of_head)
    numbers, num_pairs = torch.unique(
        (head * num_tiles[0] + query // tile) * num_tiles[1] + key_in_head // tile,
        return_counts=True)
    is_full = num_pairs == tile**2
    lists = {}
    for name, chosen in (('', ~is_full), ('full_', is_full)):
        row, column = numbers[chosen] // num_tiles[1], numbers[chosen] % num_tiles[1]
        own_head, row = row // num_tiles[0], row % num_tiles[0]
        for side, (at, other), (size, width) in (('kv', (row, column), num_tiles),
                                                 ('q', (column, row), num_tiles[::-1])):
            counts, indices = _lists(own_head * size + at, other, heads * size,
                                     1 if is_compact else width)
            lists[f'{name}{side}_num_blocks'] = counts.view(1, heads, size)
            lists[f'{name}{side}_indices'] = indices.view(1, heads, size, -1)
    return BlockMask(seq_lengths=of_head, BLOCK_SIZE=(tile, tile), **lists,
                     mask_mod=_search(indptr, key, of_head))


def _in_heads(indptr: Tensor, key: Tensor, of_head: tuple[int, int]) -> tuple[Tensor, ...]:
    """The head of each edge, and its query and key counted in that."""
    query = torch.repeat_interleave(indptr.diff(), output_size=key.numel())
    head, key_head = query // max(of_head[0], 1), key // max(of_head[1], 1)
    if not torch.equal(head, key_head):
        raise ValueError("'heads' must be the number of heads that own a graph, whose queries and "
                         "keys lie apart")
    return head, query - head * of_head[0], key - head * of_head[1]


def _lists(row: Tensor, column: Tensor, num_rows: int,
           at_least: int) -> tuple[Tensor, Tensor]:
    """How many columns each row has, and which: int32, as wide as the longest row or wider."""
    order = (row * (int(column.max()) + 1 if column.numel() else 1) + column).argsort()
    row, column = row[order], column[order]
    counts = row.bincount(minlength=num_rows)
    width = max(int(counts.max()) if num_rows else 0, at_least)
    indices = torch.zeros(num_rows, width, dtype=torch.int32, device=row.device)
    begin = counts.cumsum(0) - counts
    indices[row, torch.arange(row.numel(), device=row.device) - begin[row]] = column.int()
    return counts.int(), indices


def _search(indptr: Tensor, key: Tensor, of_head: tuple[int, int]) -> Callable[..., Tensor]:
    """FlexAttention's question whether a query attends to a key: bisection of the query's row."""
    longest = int(indptr.diff().max()) if indptr.numel() > 1 else 0
    num_steps, last = longest.bit_length(), max(key.numel() - 1, 0)
    padded = key if key.numel() else key.new_zeros(1)

    def attends(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row, wanted = head * of_head[0] + query, head * of_head[1] + key
        low, end = indptr[row], indptr[row + 1]
        high = end
        for _ in range(num_steps):
            middle = (low + high) // 2
            is_below = (padded[middle.clamp(max=last)] < wanted) & (low < high)
            low, high = torch.where(is_below, middle + 1, low), torch.where(is_below, high, middle)
        return (low < end) & (padded[low.clamp(max=last)] == wanted)

    return attends
