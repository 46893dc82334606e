"""BigBird's random attention, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RowPattern
from graphattn.patterns.layouts import positions, ranges
from graphattn.patterns.random_keys import draw_distinct


@dataclass(frozen=True, repr=False)
class RandomBlocks(RowPattern):
    """Each block of queries attends to exactly ``count`` distinct random blocks of keys.

    Every subset of blocks is equally likely. A block of queries may draw itself or its neighbours,
    so random blocks may coincide with other parts of BigBird. The last block may be partial.

    Args:
        count (int): Number of blocks of keys for each block of queries.
        block (int): Number of tokens in a block.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``count`` is negative or ``block`` is below 1. :meth:`build` also raises it if
            there are fewer blocks of keys than ``count``.

    Source: Zaheer et al., "Big Bird" (2020), Sec. 2 and App. D.

    Example:
        >>> from graphattn.patterns import RandomBlocks
        >>> RandomBlocks(1, block=2).build(6, seed=0).in_degree()
        tensor([2, 2, 2, 2, 2, 2])
    """

    count: int
    block: int

    def __post_init__(self):
        self._require_int('count', at_least=0)
        self._require_int('block', at_least=1)

    @property
    def is_random(self) -> bool:
        return True

    @property
    def min_tokens(self) -> int:
        # The last block may have a single key.
        return max((self.count - 1) * self.block + 1, 1)

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        num_key_blocks = -(-num_keys // self.block)
        if self.count > num_key_blocks:
            raise ValueError(f"'count' must be at most {num_key_blocks}, the number of blocks of "
                             f"{self.block} keys (got {self.count})")
        query_blocks = range(queries.start // self.block, -(-queries.stop // self.block))
        key_block = draw_distinct(query_blocks, num_key_blocks, self.count, generator)
        block_of_query = positions(queries) // self.block - query_blocks.start
        first_key = (key_block * self.block)[block_of_query].flatten()
        slot, key = ranges(first_key, (first_key + self.block).clamp_(max=num_keys))
        return torch.stack([key, (slot // max(self.count, 1)).add_(queries.start)])
