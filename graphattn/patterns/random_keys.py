"""Diffuser's random attention, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn._checks import check_choice
from graphattn.patterns.base import RowPattern
from graphattn.patterns.draw_distinct import draw_distinct
from graphattn.patterns.layouts import key_table, positions

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
