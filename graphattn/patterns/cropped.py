"""The leading part of a larger graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn._checks import check_kind
from graphattn.patterns.base import Pattern, RowPattern
from graphattn.patterns.layouts import crop_edges


@dataclass(frozen=True, repr=False)
class Cropped(RowPattern):
    """Build the graph of ``size`` tokens, and keep the edges among the first tokens.

    A random pattern draws edges for all ``size`` tokens. With the same seed, the graph of a shorter
    sequence is therefore a part of the graph of a longer one, and shorter sequences have fewer
    random keys and global tokens. Time and memory are those of the large graph.

    Args:
        pattern (Pattern): The pattern to crop.
        size (int): Number of tokens of the large graph.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``size`` is below 1, or, when built, below the number of tokens.

    Source: the code of Feng et al., "Diffuser" (2023), which crops one graph of 4,096 tokens.

    Example:
        >>> from graphattn.patterns import Cropped, RandomKeys
        >>> Cropped(RandomKeys(64), 4096).build(1024, seed=0)
        BipartiteGraph(num_queries=1024, num_keys=1024, num_edges=16583, density=1.6%)
    """

    pattern: Pattern
    size: int

    def __post_init__(self):
        check_kind('pattern', self.pattern, Pattern)
        self._require_int('size', at_least=1)

    @property
    def is_random(self) -> bool:
        return self.pattern.is_random

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        length = max(num_queries, num_keys)
        if length > self.size:
            raise ValueError(f"'length' must be at most {self.size}, the number of tokens of the "
                             f"cropped graph (got {length})")
        edges = self.pattern.rows(queries, self.size, self.size, generator)
        return crop_edges(edges, queries, num_keys)
