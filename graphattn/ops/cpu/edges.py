"""The edges of a graph as arrays for compiled loops, in the order by query or by key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor


class Edges(NamedTuple):
    """The edges of a graph, grouped into rows: by query, or by key."""

    indptr: np.ndarray  # where the edges of each row begin
    column: np.ndarray  # the node at the other end of each edge
    perm: np.ndarray  # in the order by key: the place of each edge in the order by query
    row_ptr: np.ndarray  # where the rows of each segment begin
    column_ptr: np.ndarray  # where the columns of each segment begin

    @classmethod
    def by_query(cls, indptr: Tensor, edge_key: Tensor, query_ptr: Tensor,
                 key_ptr: Tensor) -> Edges:
        return cls(indptr.numpy(), edge_key.contiguous().numpy(), _NO_PERM, query_ptr.numpy(),
                   key_ptr.numpy())

    @classmethod
    def of_rows(cls, indptr: Tensor, column: Tensor, perm: Tensor | None = None) -> Edges:
        """Return the edges as a single segment, for loops over ``[heads, nodes, channels]``."""
        # The values of a head are close together there, so loops need no segments.
        whole = np.array([0, indptr.numel() - 1])
        perm = _NO_PERM if perm is None else perm.numpy()
        return cls(indptr.numpy(), column.contiguous().numpy(), perm, whole, whole)


_NO_PERM = np.empty(0, np.int32)
