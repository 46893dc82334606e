"""Tokens that attend to all and are attended by all."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from graphattn.patterns.base import Pattern
from graphattn.patterns.layouts import grid


@dataclass(frozen=True, repr=False)
class GlobalTokens(Pattern):
    r"""Some tokens attend to every key and every query attends to them:
    :math:`i \in G` or :math:`j \in G`.

    Args:
        tokens (int or tuple of int): The first so many tokens, or the positions of the tokens.
        random (bool): Instead of the first, so many random ones, distinct and uniform. Diffuser
            draws them so; a classifier that reads token 0 then wants ``| GlobalTokens(1)`` beside.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number or position is negative, ``random`` comes with positions, or, when
            built, there are not so many tokens.

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

    def __post_init__(self):
        self._require_bool('random')
        if isinstance(self.tokens, tuple):
            self._require_positions()
        elif isinstance(self.tokens, Integral):
            self._require_int('tokens', at_least=0)
        else:
            raise TypeError(f"'tokens' must be an int or a tuple of ints (got "
                            f"{type(self.tokens).__name__})")

    def _require_positions(self) -> None:
        for token in self.tokens:
            if not isinstance(token, Integral) or isinstance(token, bool):
                raise TypeError(f"'tokens' must hold ints (got {type(token).__name__})")
            if token < 0:
                raise ValueError(f"'tokens' must not hold negative positions (got {token})")
        if self.random:
            raise ValueError(f"'random' needs a number of tokens, not positions (got "
                             f"{self.tokens}); pass tokens={len(self.tokens)}")
        object.__setattr__(self, 'tokens', tuple(int(token) for token in self.tokens))

    @property
    def is_random(self) -> bool:
        return self.random

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        token = self._positions(min(num_queries, num_keys), generator)
        as_query = grid(torch.arange(num_keys), token)
        as_key = grid(token, torch.arange(num_queries))
        return torch.cat([as_query, as_key], dim=1)

    def _positions(self, num_tokens: int, generator: torch.Generator | None) -> Tensor:
        if isinstance(self.tokens, tuple):
            if max(self.tokens, default=0) >= num_tokens:
                raise ValueError(f"'tokens' must hold positions below the {num_tokens} tokens "
                                 f"that are both query and key (got {max(self.tokens)})")
            return torch.tensor(self.tokens, dtype=torch.long)
        if self.tokens > num_tokens:
            raise ValueError(f"'tokens' must not exceed the {num_tokens} tokens that are both "
                             f"query and key (got {self.tokens})")
        if self.random:
            return torch.randperm(num_tokens, generator=generator)[:self.tokens]
        return torch.arange(self.tokens)
