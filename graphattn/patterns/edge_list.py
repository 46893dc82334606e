"""Edges between listed positions."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from graphattn._checks import check_edge_index, check_range, check_size
from graphattn.graphs.pairs import number_pairs, sort_pairs
from graphattn.patterns.base import RowPattern

MAX_TOKENS = 2**16 - 1  # so that the number of a pair has 32 bits
MAX_BYTES = 2**28  # of pairs, when decompressed


@dataclass(frozen=True, repr=False)
class EdgeList(RowPattern):
    """Listed edges, which sequences of all lengths share by their positions.

    Shorter sequences have the edges among their first tokens. Longer ones raise an error.

    Args:
        tokens (int): Number of positions, at most 65,535.
        pairs (str or Tensor): int64 ``[2, num_edges]``, key over query, in any order, which is
            converted to a text: the numbers of the pairs, compressed, in base 64.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A position is out of range, or the text is damaged; or, when built, there are
            more queries than positions.

    Example:
        >>> import torch
        >>> from graphattn.patterns import EdgeList
        >>> pattern = EdgeList(4, torch.tensor([[0, 0, 3, 2], [0, 1, 2, 3]]))
        >>> pattern.build(4).to_mask().int()
        tensor([[1, 0, 0, 0],
                [1, 0, 0, 0],
                [0, 0, 0, 1],
                [0, 0, 1, 0]], dtype=torch.int32)
        >>> print(pattern)
        EdgeList(4 tokens, 4 edges)
    """

    tokens: int
    pairs: str

    def __post_init__(self):
        check_size('tokens', self.tokens, 1, MAX_TOKENS)
        object.__setattr__(self, 'tokens', int(self.tokens))
        if isinstance(self.pairs, Tensor):
            check_edge_index(self.pairs)
            edges = self.pairs.cpu()
            check_range(edges, self.tokens, self.tokens)
            numbers = sort_pairs(number_pairs(*edges, self.tokens)).numpy()
            # differences of ascending numbers are small, so they compress well
            steps = np.diff(numbers, prepend=0).astype('<u4').tobytes()
            object.__setattr__(self, 'pairs', base64.b64encode(zlib.compress(steps, 9)).decode())
        if not isinstance(self.pairs, str):
            raise TypeError(f"'pairs' must be a str or an int64 Tensor [2, num_edges] (got "
                            f"{type(self.pairs).__name__})")
        self._numbers  # noqa: B018 - a damaged text raises an error here

    @cached_property
    def _numbers(self) -> np.ndarray:
        limit = min(4 * self.tokens**2, MAX_BYTES)
        try:
            text = base64.b64decode(self.pairs, validate=True)
            content = zlib.decompressobj().decompress(text, limit + 1)
            if len(content) > limit:
                raise ValueError(f'more than {limit:,} bytes when decompressed')
            steps = np.frombuffer(content, '<u4')
        except (ValueError, binascii.Error, zlib.error) as error:
            raise ValueError(f"'pairs' must be a str that EdgeList wrote, or an int64 Tensor [2, "
                             f"num_edges] (got {self.pairs[:20]!r}: {error})") from error
        numbers = np.cumsum(steps, dtype=np.int64)  # query * tokens + key
        if (np.diff(numbers) <= 0).any() or numbers.size and numbers[-1] >= self.tokens**2:
            raise ValueError(f"'pairs' must contain different pairs of tokens from 0 to "
                             f"{self.tokens - 1} (got {self.pairs[:20]!r})")
        return numbers

    @property
    def max_tokens(self) -> int:
        return self.tokens

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        if num_queries > self.tokens:
            raise ValueError(f"'length' must be at most {self.tokens}, the number of tokens of the "
                             f"EdgeList (got {num_queries})")
        ends = np.searchsorted(self._numbers, [queries.start * self.tokens,
                                               queries.stop * self.tokens])
        query, key = np.divmod(self._numbers[slice(*ends)], self.tokens)
        is_in = key < num_keys
        return torch.as_tensor(np.stack([key[is_in], query[is_in]]))

    def __str__(self) -> str:
        return f'EdgeList({self.tokens} tokens, {len(self._numbers):,} edges)'
