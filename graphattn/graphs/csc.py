"""Edges sorted by key, the order that gradients of keys need."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphattn._tensors import index_dtype, is_traced, narrow, row_pointer


def csc_of_rows(indptr: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the edges of a graph sorted by key, then by query."""
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
