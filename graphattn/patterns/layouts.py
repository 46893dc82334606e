"""The few shapes that edges come in, each listed without looking at a pair that is not one.

All return int64 ``[2, num_edges]``, key over query, as :meth:`Pattern.edges` does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid(key: Tensor, query: Tensor) -> Tensor:
    """Every one of the queries attends to every one of the keys; sorted if they are."""
    return torch.stack(torch.meshgrid(key, query, indexing='xy')).flatten(1)


def key_table(key: Tensor) -> Tensor:
    """Query i attends to the keys in row i of ``key``, ``[num_queries, keys_per_query]``."""
    query = torch.arange(key.size(0))[:, None].expand_as(key)
    return torch.stack([key, query]).flatten(1)


def key_ranges(start: Tensor, stop: Tensor) -> Tensor:
    """Query i attends to the keys ``start[i] <= key < stop[i]``."""
    query, key = ranges(start, stop)
    return torch.stack([key, query])


def diagonals(offset: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Query i attends to key ``i + offset``, where there is one, for each of the offsets."""
    diagonal, query = ranges((-offset).clamp(min=0), (num_keys - offset).clamp(max=num_queries))
    return torch.stack([query + offset[diagonal], query])


def crop_edges(edges: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Those of ``edges`` that lie among the first queries and keys."""
    key, query = edges
    return edges[:, (key < num_keys) & (query < num_queries)]


def all_offsets(num_queries: int, num_keys: int) -> Tensor:
    """Every ``key - query`` there is, ascending."""
    return torch.arange(1 - num_queries, num_keys)


def ranges(start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers ``start[r] <= number < stop[r]`` of each range r, with r itself in front."""
    length = (stop - start).clamp_(min=0)
    end = length.cumsum(0)
    row = torch.repeat_interleave(length)
    number = torch.arange(row.numel())
    number += (start - end + length)[row]
    return row, number
