r"""The pairs inside the blocks of a model, a bounded number of them at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphattn.blocks import Blocks


class Chunk(NamedTuple):
    """Consecutive rows of one block, or all rows of several blocks of one shape."""

    first_query: Tensor  # int64 [blocks]
    num_queries: int  # of each block
    first_key: Tensor  # int64 [blocks]
    num_keys: int  # of each block

    @property
    def num_pairs(self) -> int:
        return self.first_query.numel() * self.num_queries * self.num_keys

    def queries(self) -> Tensor:
        """The query of each row, int64 ``[blocks * rows]``."""
        return _nodes(self.first_query, self.num_queries)

    def first_keys(self) -> Tensor:
        """The first key of each row's block, int64 ``[blocks * rows]``."""
        return self.first_key.repeat_interleave(self.num_queries)

    def products(self, query_factor: Tensor, key_factor: Tensor, workspace: Tensor) -> Tensor:
        """Of each row and each key, ``[blocks * rows, keys]``, in ``workspace``."""
        shape = (self.first_query.numel(), self.num_queries, self.num_keys)
        product = workspace[:self.num_pairs].view(shape)
        query = _rows(query_factor, self.first_query, self.num_queries)
        key = _rows(key_factor, self.first_key, self.num_keys)
        return torch.bmm(query, key.mT, out=product).flatten(0, 1)


def chunks_of(blocks: Blocks, pairs_per_chunk: int) -> list[Chunk]:
    """Chunks of about ``pairs_per_chunk`` pairs, or of one row; together all pairs, each once."""
    block_shape = torch.stack([blocks.query_ptr.diff(), blocks.key_ptr.diff()], dim=1)
    chunks = []
    for num_queries, num_keys in sorted({(n, m) for n, m in block_shape.tolist() if n and m}):
        shape = block_shape.new_tensor((num_queries, num_keys))
        members = (block_shape == shape).all(dim=1).nonzero().flatten()
        num_rows = min(max(pairs_per_chunk // num_keys, 1), num_queries)
        for part in members.split(max(pairs_per_chunk // (num_rows * num_keys), 1)):
            first_query, first_key = blocks.query_ptr[part], blocks.key_ptr[part]
            chunks += [Chunk(first_query + row, min(num_rows, num_queries - row), first_key,
                             num_keys) for row in range(0, num_queries, num_rows)]
    return chunks


def _nodes(first: Tensor, size: int) -> Tensor:
    return (first[:, None] + torch.arange(size, device=first.device)).flatten()


def _rows(factor: Tensor, first: Tensor, size: int) -> Tensor:
    """``size`` rows from each of ``first``, ``[blocks, size, k]``; of one block without a copy."""
    if first.numel() == 1:
        return factor.narrow(0, int(first), size)[None]
    return factor.index_select(0, _nodes(first, size)).view(first.numel(), size, -1)
