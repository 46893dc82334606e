"""Random subsets of equal size, many at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._splitmix import ROW, STEP, mix_tensor, shift_right, signed
from graphattn.graphs.pairs import sort_numbers

__all__ = ['draw_distinct']

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
