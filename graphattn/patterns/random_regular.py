"""A random directed graph in which all tokens have equal numbers of neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import Pattern
from graphattn.patterns.layouts import key_table


@dataclass(frozen=True, repr=False)
class RandomRegular(Pattern):
    r"""Every query attends to ``degree`` other tokens, and ``degree`` other tokens attend to every
    key.

    The edges are ``degree`` random permutations without common edges or fixed points. So there are
    no self-loops; ``| SlidingWindow(0)`` adds them. By symmetry, every pair of two different tokens
    is an edge with probability :math:`d / (n - 1)`. Theorems on expansion assume regular graphs,
    while :class:`RandomKeys` fixes only the in-degree.

    Drawing takes :math:`O(nd \log d)` time, plus :math:`O(d)` for each of about :math:`d^2 / 2`
    collisions between the permutations. The collisions matter once d is in the hundreds.

    Args:
        degree (int): In-degree and out-degree d.

    Raises:
        TypeError: ``degree`` is not an int.
        ValueError: ``degree`` is negative. :meth:`build` also raises it if the numbers of keys and
            queries differ, or do not exceed ``degree``.

    Source: Friedman, "A proof of Alon's second eigenvalue conjecture" (2008), the permutation
    model; Feng et al., "Diffuser" (2023), Theorem 2, which assumes regularity.

    Example:
        >>> from graphattn.patterns import RandomRegular
        >>> graph = RandomRegular(3).build(8, seed=0)
        >>> graph.in_degree(), graph.out_degree()
        (tensor([3, 3, 3, 3, 3, 3, 3, 3]), tensor([3, 3, 3, 3, 3, 3, 3, 3]))
    """

    degree: int

    def __post_init__(self):
        self._require_int('degree', at_least=0)

    is_random = True

    @property
    def min_tokens(self) -> int:
        return self.degree + 1

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        if num_keys != num_queries:
            raise ValueError(f"'num_keys' must equal 'num_queries' for a regular graph (got "
                             f"num_keys={num_keys} and num_queries={num_queries})")
        if self.degree >= num_queries:
            raise ValueError(f"'degree' must be below {num_queries}, the number of tokens, because "
                             f"no token attends to itself (got {self.degree})")
        if 2 * self.degree > num_queries - 1:
            left_out = _draw_permutations(num_queries, num_queries - 1 - self.degree, generator)
            absent = torch.ones(num_queries, num_queries, dtype=torch.bool)
            return absent.scatter_(1, left_out, False).nonzero().t().flip(0)
        return key_table(range(num_queries),
                         _draw_permutations(num_queries, self.degree, generator)[:, 1:])


def _draw_permutations(num_tokens: int, degree: int, generator: torch.Generator | None) -> Tensor:
    # Returns [num_tokens, degree + 1], one permutation per column, the identity first. A key
    # collides if an earlier permutation assigns it to the same token. It is exchanged with the key
    # of a random partner token in the same permutation if neither collides afterwards, so the
    # number of collisions only decreases: at most 2 * degree - 1 partners are excluded, including
    # the token itself, of more tokens.
    drawn = [torch.randperm(num_tokens, generator=generator) for _ in range(degree)]
    keys = torch.stack([torch.arange(num_tokens), *drawn], dim=1)
    token, column = _collisions(keys)
    while token.numel():
        # Exchanges are tried in a random order, so that no token is favoured if exchanges conflict.
        tried = torch.randint(token.numel(), (min(token.numel(), num_tokens),),
                              generator=generator)
        partner = torch.randint(num_tokens, tried.shape, generator=generator)
        apart = _are_apart(token[tried], partner, num_tokens).nonzero().flatten()
        tried, partner = tried[apart], partner[apart]
        collides = torch.ones_like(token, dtype=torch.bool)
        collides[tried] = _trade(keys, token[tried], partner, column[tried])
        still = collides.nonzero().flatten()
        token, column = token[still], column[still]
    return keys


def _collisions(keys: Tensor) -> tuple[Tensor, Tensor]:
    # the row and the column of each key that an earlier column of its row repeats
    ascending, column = torch.sort(keys, dim=1, stable=True)
    token, rank = (ascending[:, 1:] == ascending[:, :-1]).nonzero().unbind(1)
    return token, column[token, rank + 1]


def _are_apart(token: Tensor, partner: Tensor, num_tokens: int) -> Tensor:
    # swaps whose token and partner occur in no earlier swap can be made at the same time
    trade = torch.arange(token.numel())
    first_trade = torch.full((num_tokens,), token.numel())
    for side in (token, partner):
        first_trade.scatter_reduce_(0, side, trade, 'amin')
    return (first_trade[token] == trade) & (first_trade[partner] == trade)


def _trade(keys: Tensor, token: Tensor, partner: Tensor, column: Tensor) -> Tensor:
    token_key, partner_key = keys[token, column], keys[partner, column]
    # In place, where a swap removes a repeated key without causing another; returns whether each
    # token still has a repeated key.
    collides = _occurrences(keys, token, token_key) > 1
    fits = (_occurrences(keys, token, partner_key) + _occurrences(keys, partner, token_key)) == 0
    trades = collides & fits
    keys[token, column] = torch.where(trades, partner_key, token_key)
    keys[partner, column] = torch.where(trades, token_key, partner_key)
    return collides & ~fits


def _occurrences(keys: Tensor, token: Tensor, key: Tensor) -> Tensor:
    return (keys[token] == key[:, None]).sum(dim=1)
