"""The edges of a graph as arrays for compiled loops, in the order by query or by key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor


class Edges(NamedTuple):
    """The edges of a graph, grouped into rows. If edges are sorted by query, a row contains the
    edges of a query, and its columns are keys. If edges are sorted by key, a row contains the edges
    of a key, and its columns are queries."""

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
        """Return the edges as a single segment, for loops over values ``[heads, nodes, channels]``.
        There, the values of one head are close together in memory, so the loops need no division
        into sequences (segments).

        Args:
            indptr (Tensor): Where the edges of each row begin.
            column (Tensor): The node at the other end of each edge.
            perm (Tensor, optional): For edges sorted by key, the place of each edge in the order by
                query.
        """
        whole = np.array([0, indptr.numel() - 1])
        perm = _NO_PERM if perm is None else perm.numpy()
        return cls(indptr.numpy(), column.contiguous().numpy(), perm, whole, whole)


_NO_PERM = np.empty(0, np.int32)
