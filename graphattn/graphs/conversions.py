"""Edges read from and written to other people's formats, without looking at a graph of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from graphattn._checks import (
    check_has_numbers,
    check_num_pairs,
    check_size,
    check_strided,
    is_float,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from torch_geometric.data import Data, HeteroData
    from torch_sparse import SparseTensor

WORD = 32  # bits
INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def attends(mask: Tensor) -> Tensor:
    """Which entries of a mask let a query attend, bool: of one that is added to logits, those that
    are 0 and neither ``-inf`` nor the least number of the dtype, which stands for it."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or is_float(mask.dtype)):
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"'mask' must be a boolean Tensor, True = attend, or a floating one of 16 "
                        f"bits or more that is added to logits (got {kind})")
    check_strided('mask', mask)
    check_has_numbers('mask', mask)
    if mask.dtype == torch.bool:
        return mask
    is_on = is_above_lowest(mask)
    others = mask[is_on & (mask != 0)]
    if others.numel():
        raise ValueError(f"'mask' must hold 0 where a query attends and -inf where not (got "
                         f"{others[0].item()}); what else is added to logits is an 'edge_bias'")
    return is_on


def is_above_lowest(added: Tensor) -> Tensor:
    """Where what is added to logits leaves a weight: not ``-inf``, nor about the least number."""
    return ~(added <= torch.finfo(added.dtype).min / 2)


def edges_of_mask(mask: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """The pairs that attend in a mask ``[query, key]`` or ``[batch, heads, query, key]``, int64
    ``[2, num_edges]``, sorted, and its blocks: how many, and the queries and keys of each."""
    is_on = attends(mask)
    if is_on.dim() not in (2, 4):
        raise ValueError(f"'mask' must be [query, key] or [batch, heads, query, key], where heads "
                         f"may be 1 (got shape {tuple(mask.shape)})")
    num_queries, num_keys = is_on.shape[-2:]
    blocks = is_on.unsqueeze(0) if is_on.dim() == 2 else is_on.transpose(0, 1).flatten(0, 1)
    block, query, key = blocks.nonzero().unbind(1)
    edge_index = torch.stack([block * num_keys + key, block * num_queries + query])
    return edge_index, (len(blocks), num_queries, num_keys)


def pairs_of_topk(indices: Tensor, num_keys: int | None) -> tuple[Tensor, tuple[int, int, int]]:
    """The pairs ``query * keys + key`` of the keys that each query names, in any order, and the
    blocks as :func:`edges_of_mask` has them."""
    if not isinstance(indices, Tensor) or indices.dtype not in INDEX_DTYPES:
        kind = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
        raise TypeError(f"'indices' must be a Tensor of integers (got {kind})")
    check_strided('indices', indices)
    check_has_numbers('indices', indices)
    if indices.dim() not in (2, 3):
        raise ValueError(f"'indices' must be [query, k] or [batch, query, k] (got shape "
                         f"{tuple(indices.shape)})")
    blocks = indices.long().unsqueeze(0) if indices.dim() == 2 else indices.long()
    batch, num_queries, _ = blocks.shape
    num_keys = num_queries if num_keys is None else num_keys
    check_size('num_keys', num_keys)
    if blocks.numel() and int(blocks.max()) >= num_keys:
        raise ValueError(f"'indices' must be numbers of keys below {num_keys}, or negative for "
                         f"none (got {int(blocks.max())}); give 'num_keys'")
    check_num_pairs(batch * num_queries, batch * num_keys)
    block = torch.arange(batch, device=blocks.device).view(-1, 1, 1)
    query = torch.arange(batch * num_queries, device=blocks.device).view(batch, num_queries, 1)
    pair = query * (batch * num_keys) + block * num_keys + blocks
    return pair[blocks >= 0], (batch, num_queries, num_keys)


def edges_of_scipy(matrix: sp.sparray | sp.spmatrix) -> Tensor:
    """The nonzero entries of a sparse matrix ``[query, key]``, int64 ``[2, num_edges]``."""
    if not sp.issparse(matrix):
        raise TypeError(f"'matrix' must be a scipy sparse array (got {type(matrix).__name__})")
    if matrix.ndim != 2:
        raise ValueError(f"'matrix' must be [query, key] (got shape {matrix.shape})")
    _check_format(matrix)
    coo = matrix.tocoo(copy=True)
    if not getattr(matrix, 'has_canonical_format', False):
        coo.sum_duplicates()  # of which an entry is the sum
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
    if num_keys == 0:  # of which scipy knows no order
        return key.new_empty(0, dtype=torch.long)
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


def edges_of_data(data: Data | HeteroData,
                  edge_type: tuple[str, str, str] | None) -> dict[str, Any]:
    """Return the arguments of ``BipartiteGraph.from_edge_index`` for the edges of PyG's data."""
    from torch_geometric.data import Data, HeteroData

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
            raise ValueError(f"'edge_type' is for HeteroData (got {edge_type} and a Data)")
        edges = keys = queries = data
    if edges.get('edge_index') is None:
        raise ValueError("'data' must have an 'edge_index'; its adj_t is taken by from_edge_index "
                         "after torch_geometric.utils.to_edge_index, and by layers as it is")
    return {'edge_index': edges.edge_index, 'num_queries': queries.num_nodes,
            'num_keys': keys.num_nodes, 'query_ptr': queries.get('ptr'),
            'key_ptr': keys.get('ptr')}


def data_of_edges(edge_index: Tensor, ptrs: tuple[Tensor, Tensor], edge_prob: Tensor | None,
                  bipartite: bool) -> Data | HeteroData:
    """Return PyG's data of edges between the blocks that two pointers mark."""
    from torch_geometric.data import Data, HeteroData

    data = HeteroData() if bipartite else Data()
    edges = data['key', 'to', 'query'] if bipartite else data
    edges.edge_index = edge_index
    if edge_prob is not None:
        edges.edge_prob = edge_prob
    for ptr, nodes in zip(ptrs, (data['query'], data['key']) if bipartite else (data,)):
        nodes.num_nodes = int(ptr[-1])
        if ptr.numel() != 2:
            nodes.ptr, nodes.batch = ptr.clone(), torch.repeat_interleave(ptr.diff())
    return data


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
    """FlexAttention's mask of heads that own equal parts of the nodes, or of one graph for all
    heads: the tiles of ``tile`` x ``tile`` pairs that hold edges, and a bit for each pair of them
    but of full ones."""
    from torch.nn.attention.flex_attention import BlockMask

    of_head = (indptr.numel() - 1) // heads, num_keys // heads
    num_tiles = [-(-size // tile) for size in of_head]
    head, query, key_in_head = _in_heads(indptr, key, of_head)
    numbers, tile_of_edge, num_pairs = torch.unique(
        (head * num_tiles[0] + query // tile) * num_tiles[1] + key_in_head // tile,
        return_inverse=True, return_counts=True)
    is_partial = num_pairs < tile**2
    lists = {}
    for name, chosen in (('', is_partial), ('full_', num_pairs == tile**2)):
        row, column = numbers[chosen] // num_tiles[1], numbers[chosen] % num_tiles[1]
        own_head, row = row // num_tiles[0], row % num_tiles[0]
        for side, (at, other), (size, width) in (('kv', (row, column), num_tiles),
                                                 ('q', (column, row), num_tiles[::-1])):
            counts, indices = _lists(own_head * size + at, other, heads * size,
                                     1 if is_compact else width)
            lists[f'{name}{side}_num_blocks'] = counts.view(1, heads, size)
            lists[f'{name}{side}_indices'] = indices.view(1, heads, size, indices.size(1))
    pair = query % tile * tile + key_in_head % tile
    place, bits = _bits(is_partial, tile_of_edge, pair, tile**2)
    place_of_tile = numbers.new_zeros(heads * num_tiles[0] * num_tiles[1], dtype=torch.int32)
    place_of_tile[numbers] = place.int()
    return BlockMask(seq_lengths=of_head, BLOCK_SIZE=(tile, tile), **lists,
                     mask_mod=_look_up(place_of_tile.view(heads, *num_tiles), bits, tile))


def tensors_of_block_mask(mask: BlockMask) -> list[Tensor]:
    """All that it holds, with what its question looks up."""
    held = (*mask.as_tuple(), *(cell.cell_contents for cell in mask.mask_mod.__closure__ or ()))
    return [part for part in held if isinstance(part, Tensor)]


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


def _bits(is_partial: Tensor, tile_of_edge: Tensor, pair: Tensor,
          num_pairs: int) -> tuple[Tensor, Tensor]:
    """Where each tile's pairs are, and the pairs as bits, int32 ``[places, words]``: those of tiles
    without edges at 0, of full ones at 1."""
    place = torch.where(is_partial, 1 + is_partial.cumsum(0), 1)
    num_words = -(-num_pairs // WORD)
    bits = place.new_zeros(2 + int(is_partial.sum()), num_words, dtype=torch.int32)
    bits[1].fill_(-1)
    is_looked_up = is_partial[tile_of_edge]
    tile_of_edge, pair = tile_of_edge[is_looked_up], pair[is_looked_up]
    word = place[tile_of_edge] * num_words + pair // WORD
    bit = torch.ones_like(word, dtype=torch.int32) << (pair % WORD).int()
    bits.view(-1).index_add_(0, word, bit)  # which sets them, for each pair is one edge at most
    return place, bits


def _look_up(place_of_tile: Tensor, bits: Tensor, tile: int) -> Callable[..., Tensor]:
    """FlexAttention's question whether a query attends to a key."""
    is_shared = place_of_tile.size(0) == 1

    def attends(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own_head = torch.zeros_like(head) if is_shared else head
        place = place_of_tile[own_head, query // tile, key // tile]
        pair = query % tile * tile + key % tile
        return bits[place, pair // WORD] >> pair % WORD & 1 == 1

    return attends
