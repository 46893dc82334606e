"""A view of a graph for compiled loops, in either direction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor


class Edges(NamedTuple):
    """Edges grouped by query or, transposed, by key."""

    indptr: np.ndarray  # where each row's edges begin
    column: np.ndarray  # the node at the other end of each edge
    perm: np.ndarray  # transposed: the position of the edge in the order by query
    row_ptr: np.ndarray  # where each segment's rows begin
    column_ptr: np.ndarray  # where each segment's columns begin

    @classmethod
    def by_query(cls, indptr: Tensor, edge_key: Tensor, query_ptr: Tensor,
                 key_ptr: Tensor) -> Edges:
        return cls(indptr.numpy(), edge_key.contiguous().numpy(), _NO_PERM, query_ptr.numpy(),
                   key_ptr.numpy())

    @classmethod
    def of_rows(cls, indptr: Tensor, column: Tensor, perm: Tensor | None = None) -> Edges:
        """Merge all segments into one, for loops over head-major values: the values of one head are
        close together in memory, so smaller segments gain nothing."""
        whole = np.array([0, indptr.numel() - 1])
        perm = _NO_PERM if perm is None else perm.numpy()
        return cls(indptr.numpy(), column.contiguous().numpy(), perm, whole, whole)


_NO_PERM = np.empty(0, np.int32)
