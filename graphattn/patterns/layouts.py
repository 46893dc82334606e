"""Functions that list common sets of edges without visiting other pairs.

A set of edges is returned as int64 ``[2, num_edges]``, key over query, as :meth:`Pattern.edges`
returns it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid(key: Tensor, query: Tensor) -> Tensor:
    """Return an edge from every key to every query, sorted if both are."""
    return torch.stack(torch.meshgrid(key, query, indexing='xy')).flatten(1)


def key_table(queries: range, key: Tensor) -> Tensor:
    """Return an edge to each query from every key in its row of ``key``, ``[queries, keys]``."""
    return torch.stack([key, positions(queries)[:, None].expand_as(key)]).flatten(1)


def key_ranges(queries: range, start: Tensor, stop: Tensor) -> Tensor:
    """Return an edge to each query i from the keys ``start[i, r] <= key < stop[i, r]`` of its
    ranges."""
    number, key = ranges(start.flatten(), stop.flatten())
    return torch.stack([key, number // start.size(1) + queries.start])


def diagonals(offset: Tensor, queries: range, num_keys: int) -> Tensor:
    """Return an edge to each query from the keys ``query + offset`` that exist."""
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
    return torch.arange(queries.start, queries.stop)


def is_in(query: Tensor, queries: range) -> Tensor:
    return (query >= queries.start) & (query < queries.stop)


def ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Return all pairs ``(r, number)`` with ``start[r] <= number < stop[r]`` as two int64
    tensors."""
    length = (stop - start).clamp_(min=0)
    end = length.cumsum(0)
    row = torch.repeat_interleave(length)
    number = torch.arange(row.numel(), device=row.device)
    number += (start - end + length)[row]
    return row, number
