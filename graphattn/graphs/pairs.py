"""Edges as integers ``query * num_keys + key``, which are sorted, merged and looked up; graphs from
edges in any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphattn._checks import (
    check_bool,
    check_edge_index,
    check_edge_prob,
    check_num_pairs,
    check_range,
    check_size,
)
from graphattn._compiler import CompilerMissing
from graphattn._tensors import index_dtype, is_traced, narrow, row_pointer
from graphattn.graphs.segments import Segments

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph


def number_pairs(key: Tensor, query: Tensor, num_keys: int) -> Tensor:
    """Return a number for each edge, ``query * num_keys + key``, int64 ``[num_edges]``."""
    return torch.add(key, query, alpha=num_keys)


def is_ascending(pair: Tensor) -> bool:
    return bool((pair[1:] > pair[:-1]).all())


def sort_pairs(pair: Tensor) -> Tensor:
    """Return edges, numbered ``query * num_keys + key``, sorted and without duplicates."""
    is_on_cpu = pair.device.type == 'cpu'
    if is_on_cpu and is_ascending(pair):
        return pair
    pair = sort_numbers(pair)
    # a GPU is synchronised once, to count the duplicates
    is_first = first_of_each(pair)
    return pair if is_on_cpu and bool(is_first.all()) else pair[is_first]


def sort_numbers(number: Tensor) -> Tensor:
    if number.device.type != 'cpu':
        return torch.sort(number).values
    # For 10 million pairs, numpy's vectorised sort took 0.2 s and torch.sort took 2.3 s.
    return torch.from_numpy(np.sort(number.numpy()))


def first_of_each(pair: Tensor) -> Tensor:
    is_first = torch.ones_like(pair, dtype=torch.bool)
    torch.ne(pair[1:], pair[:-1], out=is_first[1:])
    return is_first


def find_pairs(pair: Tensor, ascending: Tensor) -> Tensor:
    if ascending.numel() == 0:
        return torch.zeros_like(pair, dtype=torch.bool)
    position = torch.searchsorted(ascending, pair).clamp_(max=ascending.numel() - 1)
    return ascending[position] == pair


def rows_of_pairs(pair: Tensor, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor]:
    """Return the CSR rows of edges, given their ascending numbers ``query * num_keys + key``."""
    if _is_numpys(pair):  # torch.searchsorted starts threads even for 200 values
        number, indptr = pair.numpy(), np.zeros(num_queries + 1, np.int64)
        query = number // max(num_keys, 1)
        np.cumsum(np.bincount(query, minlength=num_queries), out=indptr[1:])
        return torch.from_numpy(indptr), torch.from_numpy(number - query * num_keys)
    first_pair = torch.arange(num_queries + 1, device=pair.device).mul_(num_keys)
    return torch.searchsorted(pair, first_pair), pair.remainder(max(num_keys, 1))


def rows_of_edges(
    edge_index: Tensor, num_queries: int, num_keys: int,
) -> tuple[Tensor, Tensor, Tensor, bool] | None:
    """Return (indptr, key, perm, whether perm reorders), or ``None`` for the caller to sort or
    check."""
    # None for invalid or duplicate edges; on CPUs also without numba, or with far more keys than
    # edges, because counting is slower than sorting then.
    sort = _sort_by_counting if edge_index.device.type == 'cpu' else _sort_on_gpu
    return sort(edge_index, num_queries, num_keys)


def _sort_on_gpu(edge_index: Tensor, num_queries: int,
                 num_keys: int) -> tuple[Tensor, Tensor, Tensor, bool] | None:
    if edge_index.size(1) < 2 or is_traced(edge_index):
        return None
    given = number_pairs(*edge_index, num_keys)
    pair, perm = torch.sort(given)
    lowest, highest = edge_index.aminmax(dim=1)
    steps = [x.diff().amin(0, keepdim=True) for x in (pair, given)]
    # The host waits for the GPU once, for all numbers that decide something.
    *low, highest_key, highest_query, step, given_step = torch.cat([lowest, highest,
                                                                    *steps]).tolist()
    is_valid = min(low) >= 0 and highest_key < num_keys and highest_query < num_queries
    if not is_valid or step == 0:
        return None
    return *rows_of_pairs(pair, num_queries, num_keys), perm, given_step < 0


def _sort_by_counting(edge_index: Tensor, num_queries: int,
                      num_keys: int) -> tuple[Tensor, Tensor, Tensor, bool] | None:
    sort = _compiled('sort_into_rows') if _is_numpys(edge_index) else None
    num_edges = edge_index.size(1)
    if sort is None or num_keys > _KEYS_WORTH_COUNTING + 8 * num_edges:
        return None
    indptr = edge_index.new_zeros(num_queries + 1, dtype=torch.long)
    perm = edge_index.new_empty(num_edges)
    key = edge_index.new_empty(num_edges, dtype=index_dtype(num_keys))
    edges = edge_index.contiguous().numpy()
    has_rows, is_reordered = sort(edges, num_keys, indptr.numpy(), key.numpy(), perm.numpy())
    return (indptr, key, perm, is_reordered) if has_rows else None


# Where the edges of each query begin, and the keys of the edges, which ascend for each query.
Rows = tuple[Tensor, Tensor]


def merge_rows(rows: Rows, others: Rows) -> Rows | None:
    """Return the CSR rows of the union of two graphs of one size; ``None``: sort all pairs
    instead."""
    # None on GPUs, for few edges and without numba
    merge = _compiled('merge_rows') if _are_many(rows, others) else None
    return None if merge is None else _merged(merge, rows, (others[0][:-1], others[0][1:],
                                                            others[1]))


def merge_row_ranges(rows: Rows, begin: Tensor, end: Tensor, key: Tensor) -> Rows:
    """Return the CSR rows of a graph after query i also gets the keys ``key[begin[i]:end[i]]``."""
    # Keys ascend in each range. Ranges may overlap, so that queries share a part of key.
    count = end - begin
    others = torch.nn.functional.pad(count.cumsum(0), (1, 0)), key
    num_others = int(others[0][-1])
    if num_others + rows[1].numel() >= _EDGES_WORTH_COMPILING and all(
            map(_is_numpys, (*rows, begin, key))):
        if (merge := _compiled('merge_rows')) is not None:
            return _merged(merge, rows, (begin, end, key), num_others)
    query = torch.repeat_interleave(count, output_size=num_others)
    at = torch.arange(num_others, device=key.device) + (begin - others[0][:-1])[query]
    num_keys = 1 + max((int(x.long().max()) for x in (key, rows[1]) if x.numel()), default=0)
    own = torch.repeat_interleave(rows[0].diff(), output_size=rows[1].numel())
    pair = torch.cat([number_pairs(rows[1].long(), own, num_keys),
                      number_pairs(key.long()[at], query, num_keys)])
    indptr, merged = rows_of_pairs(sort_pairs(pair), count.numel(), num_keys)
    return indptr, merged.to(key.dtype)


def _merged(merge: Callable, rows: Rows, others: tuple[Tensor, Tensor, Tensor],
            num_others: int | None = None) -> Rows:
    (indptr, key), num_others = rows, others[2].numel() if num_others is None else num_others
    merged_indptr, merged = torch.empty_like(indptr), key.new_empty(key.numel() + num_others)
    end = merge(*(x.numpy() for x in (indptr, key, *others, merged_indptr, merged)))
    return merged_indptr, _cut(merged, end)


def _cut(key: Tensor, num_edges: int) -> Tensor:
    # A copy, so that the rest is freed, unless the rest is small.
    return key[:num_edges] if num_edges > .9 * key.numel() else key[:num_edges].clone()


def rows_of_ranges(begin: Tensor, end: Tensor, num_keys: int) -> Rows | None:
    """Return the CSR rows in which query i has the keys ``begin[i, r]`` to ``end[i, r] - 1``, or
    ``None``."""
    # Ranges are in any order, may overlap, and are cut at the first and last key. None on GPUs, for
    # few edges, many ranges and without numba: the caller lists the edges in another way.
    if begin.size(1) > MAX_RANGES or not _is_numpys(begin):
        return None
    most = int((end.clamp(max=num_keys) - begin.clamp(min=0)).clamp_(min=0).sum())
    put = _compiled('put_ranges') if most >= _EDGES_WORTH_COMPILING else None
    if put is None:
        return None
    indptr = begin.new_empty(len(begin) + 1)
    key = begin.new_empty(most, dtype=index_dtype(num_keys))
    num_edges = put(*(x.numpy() for x in (begin, end, indptr, key)), num_keys)
    return indptr, _cut(key, num_edges)


def find_rows(rows: Rows, others: Rows) -> Tensor | None:
    """Return whether each edge is also in another graph; ``None``: search in sorted pairs
    instead."""
    # None on GPUs, for few edges and without numba
    find = _compiled('find_in_rows') if _are_many(rows, others) else None
    if find is None:
        return None
    is_found = rows[1].new_empty(rows[1].numel(), dtype=torch.bool)
    find(*(x.numpy() for x in (*rows, *others, is_found)))
    return is_found


def _are_many(rows: Rows, others: Rows) -> bool:
    return (all(map(_is_numpys, (*rows, *others)))
            and rows[1].numel() + others[1].numel() >= _EDGES_WORTH_COMPILING)


_KEYS_WORTH_COUNTING = 1 << 16
MAX_RANGES = 16  # of a row, because each range of a row is compared with all others
_EDGES_WORTH_COMPILING = 1 << 15  # the loops take a second to compile, once


@cache
def _compiled(name: str) -> Callable | None:
    try:
        return getattr(import_module('graphattn.graphs.cpu'), name)
    except CompilerMissing:
        return None


def _is_numpys(pair: Tensor) -> bool:
    return (type(pair) is Tensor and pair.device.type == 'cpu'
            and not torch.compiler.is_compiling())


def csc_of_rows(indptr: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    # Begin of each key int64 [num_keys + 1], query of each edge in the narrowest dtype, and index
    # of each edge in the given order, int32 or int64.
    return (_sort_as_operator if is_traced(key) else _sort_by_key)(indptr, key, num_keys)


def _sort_by_key(indptr: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    num_queries, num_edges = indptr.numel() - 1, key.numel()
    perm_dtype = torch.int32 if num_edges < 2**31 else torch.int64
    if key.device.type == 'cpu':  # scipy transposes in O(edges), without a sort
        perm = torch.arange(num_edges, dtype=perm_dtype, device='cpu').numpy()
        # scipy needs the same signed dtype for indptr and keys.
        index = np.int32 if max(num_edges, num_keys, num_queries) < 2**31 else np.int64
        csc = sp.csr_array((perm, key.numpy().astype(index), indptr.numpy().astype(index)),
                           shape=(num_queries, num_keys)).tocsc()
        key_indptr, query, perm = map(torch.from_numpy, (csc.indptr, csc.indices, csc.data))
        return key_indptr.long(), narrow(query, num_queries), perm
    key, perm = torch.sort(key.to(_sortable_dtype(num_keys)), stable=True)
    query = torch.repeat_interleave(indptr.diff(), output_size=num_edges).index_select(0, perm)
    return row_pointer(key, num_keys), narrow(query, num_queries), perm.to(perm_dtype)


# An operator, because torch.compile cannot trace scipy.
_sort_as_operator = torch.library.custom_op('graphattn::csc_of_rows', _sort_by_key, mutates_args=())


def _sortable_dtype(bound: int) -> torch.dtype:
    # Sorting on a GPU needs a pass for each byte; torch does not sort uint16.
    return torch.int16 if bound <= 2**15 else torch.int32 if bound <= 2**31 else torch.int64


@_sort_as_operator.register_fake
def _(indptr: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    return (indptr.new_empty(num_keys + 1),
            key.new_empty(key.shape, dtype=index_dtype(indptr.numel() - 1)),
            key.new_empty(key.shape, dtype=torch.int32))


# Graphs of edges in any order ########################################################


class RepeatedEdges(ValueError):
    """Raised if duplicate edges would have to be merged although each has its own value."""


def from_edge_index(
    cls: type[BipartiteGraph],
    edge_index: Tensor,
    num_queries: int,
    num_keys: int | None = None,
    *,
    edge_prob: Tensor | None = None,
    query_ptr: Tensor | None = None,
    key_ptr: Tensor | None = None,
    return_perm: bool = False,
) -> BipartiteGraph | tuple[BipartiteGraph, Tensor]:
    """Return the graph of edges in any order. Duplicates are merged.

    The graph sorts its edges by query and then by key. All values on edges (``edge_bias``,
    ``edge_gate``, attention weights) must be in this order. ``return_perm`` returns the permutation
    from the order of ``edge_index`` to the order of the graph.

    The other arguments are those of :class:`BipartiteGraph`. Duplicates of an edge must have the
    same ``edge_prob``.

    Args:
        return_perm (bool): Whether to return ``(graph, perm)``, where ``edge_index[:, perm]``
            equals ``graph.edge_index``. So ``values[perm]`` are in the order of the graph. With
            ``return_perm``, duplicate edges raise an error.

    Raises:
        RepeatedEdges: ``return_perm`` is set, and there are duplicate edges.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> edge_index = torch.tensor([[2, 0, 1], [1, 0, 0]])  # key over query, in any order
        >>> weight = torch.tensor([.1, .2, .3])                # on these edges
        >>> graph, perm = BipartiteGraph.from_edge_index(edge_index, 2, 3, return_perm=True)
        >>> graph.edge_index.as_tensor(), weight[perm]
        (tensor([[0, 1, 2],
                [0, 0, 1]]), tensor([0.2000, 0.3000, 0.1000]))
    """
    num_keys = num_queries if num_keys is None else num_keys
    check_edge_index(edge_index)
    check_size('num_queries', num_queries)
    check_size('num_keys', num_keys)
    check_num_pairs(num_queries, num_keys)
    check_bool(return_perm=return_perm)
    sizes = int(num_queries), int(num_keys)
    if return_perm and edge_prob is None and (
            found := rows_of_edges(plain(edge_index), *sizes)) is not None:
        indptr, key, perm, is_reordered = found
        segments = Segments.of(query_ptr, key_ptr, sizes, edge_index.device)
        graph = cls._of(indptr, key, int(num_keys), segments, None, is_reordered)
        graph._validate_values()
        return graph, perm
    check_range(edge_index, num_queries, num_keys)
    if edge_prob is not None:
        check_edge_prob(edge_prob, edge_index.size(1), edge_index.device)
    segments = Segments.of(query_ptr, key_ptr, sizes, edge_index.device)
    given = number_pairs(*plain(edge_index), num_keys)
    if return_perm or edge_prob is not None:
        perm = given.argsort(stable=True)
        pair = given[perm]
        is_first = first_of_each(pair)
        if return_perm and not bool(is_first.all()):
            raise RepeatedEdges(f"'edge_index' must contain each edge only once, because its order "
                                f"is that of values on edges (got {given.numel()} edges, "
                                f"{int(is_first.sum())} of them different); merge duplicates by "
                                f"torch_geometric.utils.coalesce")
        if edge_prob is not None:
            prob = edge_prob[perm]
            if bool((prob[1:] != prob[:-1])[~is_first[1:]].any()):
                raise ValueError("'edge_prob' must be the same for all duplicates of an edge (got "
                                 "different probabilities); pass each edge only once")
            edge_prob = prob[is_first]
        pair = pair if return_perm else pair[is_first]
    else:
        pair = sort_pairs(given)
    graph = cls._of(*rows_of_pairs(pair, *sizes), int(num_keys), segments, edge_prob,
                    not torch.equal(pair, given))
    graph._validate_values()
    return (graph, perm) if return_perm else graph


def plain(edge_index: Tensor) -> Tensor:
    if type(edge_index) is Tensor:  # avoids importing PyG, which takes seconds
        return edge_index
    from torch_geometric import EdgeIndex

    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
