"""Functions that list common sets of edges without visiting other pairs.

A set of edges is returned as int64 ``[2, num_edges]``, key over query, as :meth:`Pattern.edges`
returns it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid(key: Tensor, query: Tensor) -> Tensor:
    """Join every query with every key. The result is sorted if the inputs are."""
    return torch.stack(torch.meshgrid(key, query, indexing='xy')).flatten(1)


def key_table(queries: range, key: Tensor) -> Tensor:
    """Join query i of ``queries`` with the keys in row i of ``key``, ``[queries, keys]``."""
    return torch.stack([key, positions(queries)[:, None].expand_as(key)]).flatten(1)


def key_ranges(queries: range, start: Tensor, stop: Tensor) -> Tensor:
    """Join query i of ``queries`` with the keys ``start[i] <= key < stop[i]``."""
    row, key = ranges(start, stop)
    return torch.stack([key, row.add_(queries.start)])


def diagonals(offset: Tensor, queries: range, num_keys: int) -> Tensor:
    """Join each query with the keys ``query + offset`` that exist, for each value in ``offset``."""
    diagonal, query = ranges((-offset).clamp(min=queries.start),
                             (num_keys - offset).clamp(max=queries.stop))
    return torch.stack([query + offset[diagonal], query])


def crop_edges(edges: Tensor, queries: range, num_keys: int) -> Tensor:
    """Return the ``edges`` of ``queries`` whose keys are below ``num_keys``."""
    key, query = edges
    return edges[:, (key < num_keys) & is_in(query, queries)]


def all_offsets(queries: range, num_keys: int) -> Tensor:
    """Return all values of ``key - query``, ascending."""
    return torch.arange(1 - queries.stop, num_keys - queries.start)


def positions(queries: range) -> Tensor:
    """Return the numbers of a range of queries as an int64 tensor."""
    return torch.arange(queries.start, queries.stop)


def is_in(query: Tensor, queries: range) -> Tensor:
    """Return bool, shaped like ``query``: which values are in the range ``queries``."""
    return (query >= queries.start) & (query < queries.stop)


def ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Return all pairs ``(r, number)`` with ``start[r] <= number < stop[r]`` as two int64
    tensors."""
    length = (stop - start).clamp_(min=0)
    end = length.cumsum(0)
    row = torch.repeat_interleave(length)
    number = torch.arange(row.numel())
    number += (start - end + length)[row]
    return row, number
