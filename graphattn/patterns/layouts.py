"""The few shapes that edges come in, each listed without looking at a pair that is not one.

All return int64 ``[2, num_edges]``, key over query, as :meth:`Pattern.edges` does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid(key: Tensor, query: Tensor) -> Tensor:
    """Join every one of the queries with every one of the keys; sorted if they are."""
    return torch.stack(torch.meshgrid(key, query, indexing='xy')).flatten(1)


def key_table(queries: range, key: Tensor) -> Tensor:
    """Query i of ``queries`` attends to the keys in row i of ``key``, ``[queries, keys]``."""
    return torch.stack([key, positions(queries)[:, None].expand_as(key)]).flatten(1)


def key_ranges(queries: range, start: Tensor, stop: Tensor) -> Tensor:
    """Query i of ``queries`` attends to the keys ``start[i] <= key < stop[i]``."""
    row, key = ranges(start, stop)
    return torch.stack([key, row.add_(queries.start)])


def diagonals(offset: Tensor, queries: range, num_keys: int) -> Tensor:
    """Join each query to the key ``offset`` away, where there is one, for each of the offsets."""
    diagonal, query = ranges((-offset).clamp(min=queries.start),
                             (num_keys - offset).clamp(max=queries.stop))
    return torch.stack([query + offset[diagonal], query])


def crop_edges(edges: Tensor, queries: range, num_keys: int) -> Tensor:
    """Return the ``edges`` among ``queries`` and the first keys."""
    key, query = edges
    return edges[:, (key < num_keys) & is_in(query, queries)]


def all_offsets(queries: range, num_keys: int) -> Tensor:
    """Return every ``key - query`` there is, ascending."""
    return torch.arange(1 - queries.stop, num_keys - queries.start)


def positions(queries: range) -> Tensor:
    """Return consecutive queries as int64."""
    return torch.arange(queries.start, queries.stop)


def is_in(query: Tensor, queries: range) -> Tensor:
    """Return which values are among ``queries``."""
    return (query >= queries.start) & (query < queries.stop)


def ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``start[r] <= number < stop[r]`` for each range r, with r itself in front."""
    length = (stop - start).clamp_(min=0)
    end = length.cumsum(0)
    row = torch.repeat_interleave(length)
    number = torch.arange(row.numel())
    number += (start - end + length)[row]
    return row, number
