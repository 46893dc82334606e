"""Random attention: draws of distinct keys, of blocks of keys, of pairs, and of regular graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn._checks import check_choice
from graphattn._splitmix import ROW, STEP, mix_tensor, shift_right, signed
from graphattn.graphs.pairs import sort_numbers
from graphattn.patterns.base import Pattern, RowPattern
from graphattn.patterns.layouts import key_table, positions, ranges

__all__ = ['RandomBlocks', 'RandomKeys', 'RandomPairs', 'RandomRegular', 'draw_distinct']

_SPACINGS = ('random', 'uniform')


@dataclass(frozen=True, repr=False)
class RandomKeys(RowPattern):
    r"""Each query attends to exactly ``count`` distinct keys, drawn uniformly or evenly spaced.

    With random spacing, every subset of ``count`` keys is equally likely, independently for each
    query. A query may draw its own position, and edges are not symmetric.

    With uniform spacing, the n keys are placed on a circle that begins at the query. The query
    attends to the midpoints of ``count`` equal arcs of this circle:

    .. math::
        j = \Big(i + \Big\lfloor \frac{(2t + 1) n}{2r} \Big\rfloor\Big) \bmod n,
        \quad 0 \le t < r.

    Args:
        count (int): Number r of keys of each query.
        spacing (str): ``'random'`` draws keys, ``'uniform'`` spaces keys evenly.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``count`` is negative or ``spacing`` is unknown. :meth:`build` also raises it if
            there are fewer keys than ``count``.

    Source: Feng et al., "Diffuser" (2023), Sparse Pattern Design: "for each input token i, we
    randomly select r tokens"; its ablation "uniform random".

    Example:
        >>> from graphattn.patterns import RandomKeys
        >>> RandomKeys(2).build(1000, seed=0).in_degree().unique()
        tensor([2])
        >>> RandomKeys(2, spacing='uniform').build(4).to_mask().int()
        tensor([[0, 1, 0, 1],
                [1, 0, 1, 0],
                [0, 1, 0, 1],
                [1, 0, 1, 0]], dtype=torch.int32)
    """

    count: int
    spacing: str = 'random'

    def __post_init__(self):
        self._require_int('count', at_least=0)
        check_choice('spacing', self.spacing, _SPACINGS)

    @property
    def is_random(self) -> bool:
        return self.spacing == 'random'

    @property
    def min_tokens(self) -> int:
        return max(self.count, 1)

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        if self.count > num_keys:
            raise ValueError(f"'count' must be at most {num_keys}, the number of keys (got "
                             f"{self.count})")
        if self.is_random:
            return key_table(queries, draw_distinct(queries, num_keys, self.count, generator))
        midpoint = (2 * torch.arange(self.count) + 1) * num_keys // max(2 * self.count, 1)
        return key_table(queries, (positions(queries)[:, None] + midpoint) % num_keys)


_STEP, _ROW = signed(STEP), signed(ROW)


def draw_distinct(rows: range, num_choices: int, count: int,
                  generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` distinct numbers below ``num_choices`` for each row, every subset equally
    likely."""
    # The seed is drawn first, so that the generator advances equally if there are no rows.
    seed = torch.randint(2**63 - 1, (1,), generator=generator)
    # Each row has its own random bits, so its draws do not depend on the other rows. Duplicates are
    # drawn again until there are none, in the memory of the result; each round of draws
    # synchronises a GPU twice.
    stream = mix_tensor(seed + torch.arange(rows.start, rows.stop) * _ROW)
    if 2 * count > num_choices:
        return _complement(_draw(stream, num_choices, num_choices - count), num_choices)
    return _draw(stream, num_choices, count)


def _draw(stream: Tensor, num_choices: int, count: int) -> Tensor:
    choice = sort_numbers(_numbers(stream[:, None] + torch.arange(count) * _STEP, num_choices))
    open_row, ascending, num_drawn = torch.arange(len(stream)), choice, count
    while True:
        again = ascending[:, 1:] == ascending[:, :-1]
        is_open = again.any(dim=1).nonzero().flatten()
        if is_open.numel() == 0:
            return choice
        open_row, ascending = open_row[is_open], ascending[is_open]
        row, column = again[is_open].nonzero().unbind(1)
        column += 1
        state = stream[open_row[row]] + (column + num_drawn) * _STEP
        ascending[row, column] = _numbers(state, num_choices)
        choice[open_row] = ascending = sort_numbers(ascending)
        num_drawn += count


def _numbers(state: Tensor, num_choices: int) -> Tensor:
    # from 53 random bits
    uniform = shift_right(mix_tensor(state), 11).double()
    uniform *= num_choices * 2.**-53
    return uniform.long()


def _complement(left_out: Tensor, num_choices: int) -> Tensor:
    num_rows, num_left_out = left_out.shape
    stays = torch.ones(num_rows, num_choices, dtype=torch.bool)
    stays.scatter_(1, left_out, False)
    return stays.nonzero()[:, 1].view(num_rows, num_choices - num_left_out)


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

    is_random = True

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

    is_random = True

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
            key = _complement(left_out, num_queries)
        else:
            key = _draw_permutations(num_queries, self.degree, generator)[:, 1:]
        return key_table(range(num_queries), key)


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
