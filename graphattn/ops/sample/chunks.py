r"""Division of the pairs of queries and keys inside segments into chunks of bounded size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphattn.graphs.segments import Segments


class Chunk(NamedTuple):
    """Consecutive queries of one segment, or all of several of one shape, and a piece of their
    keys."""

    first_query: Tensor  # of each segment, int64 [segments]
    num_queries: int  # of each segment
    first_key: Tensor  # of the piece of each segment, int64 [segments]
    num_keys: int  # of the piece of each segment
    piece: int  # number of earlier pieces of these rows
    offset: int  # number of keys in the earlier pieces

    @property
    def num_pairs(self) -> int:
        return self.first_query.numel() * self.num_queries * self.num_keys

    def queries(self) -> Tensor:
        return _nodes(self.first_query, self.num_queries)

    def first_keys(self) -> Tensor:
        # the first key that each query of the chunk is paired with
        return self.first_key.repeat_interleave(self.num_queries)

    def products(self, query_factor: Tensor, key_factor: Tensor, workspace: Tensor) -> Tensor:
        """Return the products of all pairs, ``[segments * num_queries, num_keys]``, in the
        workspace."""
        shape = (self.first_query.numel(), self.num_queries, self.num_keys)
        product = workspace[:self.num_pairs].view(shape)
        query = _rows(query_factor, self.first_query, self.num_queries)
        key = _rows(key_factor, self.first_key, self.num_keys)
        return torch.bmm(query, key.mT, out=product).flatten(0, 1)


def chunks_of(segments: Segments, pairs_per_chunk: int,
              keys_per_piece: int | None = None) -> list[Chunk]:
    """Return chunks that together contain all pairs inside the segments."""
    # of at most about pairs_per_chunk pairs, or the pairs of a single query
    segment_shape = torch.stack([segments.query_ptr.diff(), segments.key_ptr.diff()], dim=1)
    chunks = []
    for num_queries, num_keys in sorted({(n, m) for n, m in segment_shape.tolist() if n and m}):
        is_member = (segment_shape[:, 0] == num_queries) & (segment_shape[:, 1] == num_keys)
        members = is_member.nonzero().flatten()
        width = num_keys if keys_per_piece is None else min(keys_per_piece, num_keys)
        num_rows = min(max(pairs_per_chunk // width, 1), num_queries)
        for part in members.split(max(pairs_per_chunk // (num_rows * width), 1)):
            first_query, first_key = segments.query_ptr[part], segments.key_ptr[part]
            chunks += [Chunk(first_query + row, min(num_rows, num_queries - row),
                             first_key + key, min(width, num_keys - key), piece, key)
                       for row in range(0, num_queries, num_rows)
                       for piece, key in enumerate(range(0, num_keys, width))]
    return chunks


def _nodes(first: Tensor, size: int) -> Tensor:
    return (first[:, None] + torch.arange(size, device=first.device)).flatten()


def _rows(factor: Tensor, first: Tensor, size: int) -> Tensor:
    # a view for one segment, and on CPUs also for adjacent segments
    num_segments = first.numel()
    if num_segments == 1 or first.device.type == 'cpu' and _are_adjacent(first, size):
        factor = factor.narrow(0, int(first[0]), size * num_segments)
    else:
        factor = factor.index_select(0, _nodes(first, size))
    return factor.view(num_segments, size, -1)


def _are_adjacent(first: Tensor, size: int) -> bool:
    # the ranges ascend without overlap
    return int(first[-1] - first[0]) == size * (first.numel() - 1)
