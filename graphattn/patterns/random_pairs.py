"""Random entries of the attention matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import Pattern
from graphattn.patterns.random_keys import draw_distinct


@dataclass(frozen=True, repr=False)
class RandomPairs(Pattern):
    """Exactly ``count`` distinct pairs of a query and a key, every subset equally likely.

    Args:
        count (int, optional): Number of pairs. If omitted, it is the number of queries, which is
            the size of the diagonal.

    Raises:
        TypeError: ``count`` is not an int.
        ValueError: ``count`` is negative. :meth:`build` also raises it if ``count`` exceeds the
            number of pairs.

    Source: SparseBERT, Sec. 3.3.3: "we remove the same number (128) of entries randomly".

    Example:
        >>> from graphattn.patterns import Full, RandomPairs
        >>> (Full() - RandomPairs()).build(128, seed=0)
        BipartiteGraph(num_queries=128, num_keys=128, num_edges=16256, density=99.2%)
    """

    count: int | None = None

    def __post_init__(self):
        if self.count is not None:
            self._require_int('count', at_least=0)

    @property
    def is_random(self) -> bool:
        return True

    @property
    def min_tokens(self) -> int:
        return math.isqrt((self.count or 1) - 1) + 1  # the square root, rounded up

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        count = num_queries if self.count is None else self.count
        num_pairs = num_queries * num_keys
        if count > num_pairs:
            raise ValueError(f"'count' must be at most {num_pairs}, the number of pairs (got "
                             f"{self.count})")
        pair = draw_distinct(range(1), num_pairs, count, generator)[0]
        return torch.stack([pair % num_keys, pair // num_keys])
