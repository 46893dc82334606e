"""Global tokens, which attend to all tokens and to which all tokens attend."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from graphattn.graphs.pairs import MAX_RANGES
from graphattn.patterns.base import MAX_NUMBER, RowPattern
from graphattn.patterns.distances import SlidingWindow
from graphattn.patterns.layouts import grid, is_in, positions


@dataclass(frozen=True, repr=False)
class GlobalTokens(RowPattern):
    r"""Some tokens attend to every key and every query attends to them:
    :math:`i \in G` or :math:`j \in G`.

    Args:
        tokens (int or tuple of int): Number of leading tokens, or the positions of the tokens.
        random (bool): Whether to draw distinct tokens uniformly, as in Diffuser, instead of using
            the first tokens.
        first (int): First position of random tokens. For a classifier that reads token 0,
            ``GlobalTokens(1) | GlobalTokens(63, random=True, first=1)`` has token 0 and 63 random
            tokens.
        block (int): Number of adjacent tokens that are drawn together as a block. Blocks begin at
            ``first``, and partial blocks are never drawn.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number or position is negative, ``random`` is set with positions, ``first`` or
            ``block`` is set without ``random``, or ``tokens`` is not a multiple of ``block``.
            :meth:`build` also raises it if the sequence has fewer tokens.

    Source: Beltagy et al., "Longformer" (2020), Sec. 3.1; Zaheer et al., "Big Bird" (2020),
    Sec. 2; Feng et al., "Diffuser" (2023), Sparse Pattern Design.

    Example:
        >>> from graphattn.patterns import GlobalTokens
        >>> GlobalTokens((1, 3)).build(4).to_mask().int()
        tensor([[0, 1, 0, 1],
                [1, 1, 1, 1],
                [0, 1, 0, 1],
                [1, 1, 1, 1]], dtype=torch.int32)
    """

    tokens: int | tuple[int, ...]
    random: bool = False
    first: int = 0
    block: int = 1

    def __post_init__(self):
        self._require_bool('random')
        self._require_int('first', at_least=0)
        self._require_int('block', at_least=1)
        if isinstance(self.tokens, tuple):
            self._require_positions()
        elif isinstance(self.tokens, Integral):
            self._require_int('tokens', at_least=0)
        else:
            raise TypeError(f"'tokens' must be an int or a tuple of ints (got "
                            f"{type(self.tokens).__name__})")
        for name, value, default in (('first', self.first, 0), ('block', self.block, 1)):
            if value != default and not self.random:
                raise ValueError(f"'{name}' must be omitted unless random=True (got {value})")
        if self.random and self.tokens % self.block:
            raise ValueError(f"'tokens' must be a multiple of 'block' (got tokens={self.tokens} "
                             f"and block={self.block})")

    def _require_positions(self) -> None:
        for token in self.tokens:
            if not isinstance(token, Integral) or isinstance(token, bool):
                raise TypeError(f"'tokens' must contain only ints (got {type(token).__name__})")
            if not 0 <= token <= MAX_NUMBER:
                raise ValueError(f"'tokens' must contain positions from 0 to {MAX_NUMBER} (got "
                                 f"{token})")
        if self.random:
            raise ValueError(f"'tokens' must be the number of tokens with random=True (got the "
                             f"positions {self.tokens}); pass tokens={len(self.tokens)}")
        object.__setattr__(self, 'tokens', tuple(int(token) for token in self.tokens))

    @property
    def is_random(self) -> bool:
        return self.random

    @property
    def min_tokens(self) -> int:
        if isinstance(self.tokens, tuple):
            return max(self.tokens, default=0) + 1
        return self.first + self.tokens if self.tokens else 1

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        token = self._positions(min(num_queries, num_keys), generator)
        # All tokens are kept where possible, because filtering them would synchronise a GPU.
        own = token if len(queries) == num_queries else token[is_in(token, queries)]
        as_query = grid(torch.arange(num_keys), own)
        as_key = grid(token, positions(queries))
        return torch.cat([as_query, as_key], dim=1)

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor] | None:
        are_positions = isinstance(self.tokens, tuple)
        if self.random or are_positions and len(self.tokens) > MAX_RANGES:
            return None
        token, query = self._positions(min(num_queries, num_keys), None), positions(queries)
        first, size = (token, 1) if are_positions else (torch.tensor([0]), self.tokens)
        attends_to_all = torch.isin(query, token)[:, None]
        return (first.masked_fill(attends_to_all, 0),
                (first + size).masked_fill(attends_to_all, num_keys))

    def _positions(self, num_tokens: int, generator: torch.Generator | None) -> Tensor:
        if isinstance(self.tokens, tuple):
            if max(self.tokens, default=0) >= num_tokens:
                raise ValueError(f"'tokens' must contain positions below {num_tokens}, the number "
                                 f"of tokens that are both query and key (got {max(self.tokens)})")
            return torch.tensor(self.tokens, dtype=torch.long)
        if self.random:
            return self._draw(num_tokens, generator)
        if self.tokens > num_tokens:
            raise ValueError(f"'tokens' must be at most {num_tokens}, the number of tokens that "
                             f"are both query and key (got {self.tokens})")
        return torch.arange(self.tokens)

    def _draw(self, num_tokens: int, generator: torch.Generator | None) -> Tensor:
        num_blocks = max(num_tokens - self.first, 0) // self.block
        if self.tokens > num_blocks * self.block:
            in_blocks = f', in blocks of {self.block}' if self.block > 1 else ''
            after = f' from position {self.first} on' if self.first else ''
            raise ValueError(f"'tokens' must be at most {num_blocks * self.block}, the number of "
                             f"tokens that are both query and key{after}{in_blocks} (got "
                             f"{self.tokens})")
        block = torch.randperm(num_blocks, generator=generator)[:self.tokens // self.block]
        start = self.first + self.block * block
        return (start[:, None] + torch.arange(self.block)).flatten()


@dataclass(frozen=True, repr=False)
class Star(RowPattern):
    r"""A query attends to itself, its two neighbours and token 0. Token 0 attends to all tokens.

    The pattern has the edges of ``SlidingWindow(1) | GlobalTokens(1)``. Token 0 is the relay of the
    Star-Transformer. The other tokens form an open chain instead of a ring, because only a chain
    matches the sparsity that SparseBERT reports.

    Source: Guo et al., "Star-Transformer" (2019), Sec. 3.1; SparseBERT, Figure 1(a).

    Example:
        >>> from graphattn.patterns import Star
        >>> Star().build(5).to_mask().int()
        tensor([[1, 1, 1, 1, 1],
                [1, 1, 1, 0, 0],
                [1, 1, 1, 1, 0],
                [1, 0, 1, 1, 1],
                [1, 0, 0, 1, 1]], dtype=torch.int32)
    """

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        return (SlidingWindow(1) | GlobalTokens(1)).rows(queries, num_queries, num_keys, generator)
