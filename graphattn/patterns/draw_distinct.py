"""Random subsets of equal size, many at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def draw_distinct(num_rows: int, num_choices: int, count: int,
                  generator: torch.Generator | None) -> Tensor:
    """For each row ``count`` distinct numbers below ``num_choices``, int64 ``[num_rows, count]``.

    Every subset is equally likely. Numbers are drawn with replacement; of those that a row holds
    twice one stays and the rest is drawn again, until none is. No step tells one number from
    another, so permuting them changes no probability: the subset is uniform. Memory is that of
    the result.
    """
    if 2 * count > num_choices:
        left_out = draw_distinct(num_rows, num_choices, num_choices - count, generator)
        return _complement(left_out, num_choices)
    choice = torch.randint(num_choices, (num_rows, count), generator=generator)
    open_row = torch.arange(num_rows)
    while open_row.numel():
        ascending = torch.from_numpy(np.sort(choice[open_row].numpy(), axis=1))
        again = torch.zeros_like(ascending, dtype=torch.bool)
        again[:, 1:] = ascending[:, 1:] == ascending[:, :-1]
        ascending[again] = torch.randint(num_choices, (int(again.sum()),), generator=generator)
        choice[open_row] = ascending
        open_row = open_row[again.any(dim=1)]
    return choice


def _complement(left_out: Tensor, num_choices: int) -> Tensor:
    num_rows, num_left_out = left_out.shape
    stays = torch.ones(num_rows, num_choices, dtype=torch.bool).scatter_(1, left_out, False)
    return stays.nonzero()[:, 1].view(num_rows, num_choices - num_left_out)
