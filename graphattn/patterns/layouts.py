"""Functions that list common sets of edges without visiting other pairs.

A set of edges is returned as int64 ``[2, num_edges]``, key over query, as :meth:`Pattern.edges`
returns it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid(key: Tensor, query: Tensor) -> Tensor:
    """Return an edge from every key in ``key`` to every query in ``query``, int64 ``[2,
    num_edges]``. The edges are sorted if the inputs are sorted."""
    return torch.stack(torch.meshgrid(key, query, indexing='xy')).flatten(1)


def key_table(queries: range, key: Tensor) -> Tensor:
    """Return an edge to each query from every key in its row of ``key``, int64 ``[2, num_edges]``.
    The table ``key`` is ``[queries, keys]``."""
    return torch.stack([key, positions(queries)[:, None].expand_as(key)]).flatten(1)


def key_ranges(queries: range, start: Tensor, stop: Tensor) -> Tensor:
    """Return an edge to each query i from all keys of its ranges ``start[i, r] <= key < stop[i,
    r]``, int64 ``[2, num_edges]``. The bounds are int64 ``[len(queries), num_ranges]``."""
    number, key = ranges(start.flatten(), stop.flatten())
    return torch.stack([key, number // start.size(1) + queries.start])


def diagonals(offset: Tensor, queries: range, num_keys: int) -> Tensor:
    """Return an edge to each query from the key ``query + offset``, for each value in ``offset``,
    int64 ``[2, num_edges]``. Keys that do not exist are left out."""
    diagonal, query = ranges((-offset).clamp(min=queries.start),
                             (num_keys - offset).clamp(max=queries.stop))
    return torch.stack([query + offset[diagonal], query])


def crop_edges(edges: Tensor, queries: range, num_keys: int) -> Tensor:
    """Return those of ``edges`` that lead to ``queries`` from keys below ``num_keys``."""
    key, query = edges
    return edges[:, (key < num_keys) & is_in(query, queries)]


def all_offsets(queries: range, num_keys: int) -> Tensor:
    """Return all values that ``key - query`` can have for these queries and keys, ascending."""
    return torch.arange(1 - queries.stop, num_keys - queries.start)


def positions(queries: range) -> Tensor:
    """Return a range of queries as an int64 tensor."""
    return torch.arange(queries.start, queries.stop)


def is_in(query: Tensor, queries: range) -> Tensor:
    """Return a bool Tensor with the shape of ``query``: whether each value is in the range
    ``queries``."""
    return (query >= queries.start) & (query < queries.stop)


def ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Return all pairs ``(r, number)`` with ``start[r] <= number < stop[r]`` as two int64 tensors,
    one for r and one for the number."""
    length = (stop - start).clamp_(min=0)
    end = length.cumsum(0)
    row = torch.repeat_interleave(length)
    number = torch.arange(row.numel(), device=row.device)
    number += (start - end + length)[row]
    return row, number
