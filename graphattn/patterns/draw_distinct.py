"""Random subsets of equal size, many at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def draw_distinct(rows: range, num_choices: int, count: int,
                  generator: torch.Generator | None) -> Tensor:
    """For each row ``count`` distinct numbers below ``num_choices``, int64 ``[len(rows), count]``.

    Every subset is equally likely. Numbers are drawn with replacement; of those that a row holds
    twice one stays and the rest is drawn again, until none is. No step tells one number from
    another, so permuting them changes no probability: the subset is uniform. Memory is that of
    the result.

    One number from ``generator`` is the seed of all rows, each of which has random bits of its
    own: what a row draws does not depend on which others are asked for.
    """
    # Drawn first, that a generator moves on alike without any rows.
    seed = torch.randint(2**63 - 1, (1,), generator=generator).numpy().astype(np.uint64)
    stream = _hash(seed + np.arange(rows.start, rows.stop, dtype=np.uint64) * _ROW)
    if 2 * count > num_choices:
        return _complement(_draw(stream, num_choices, num_choices - count), num_choices)
    return torch.from_numpy(_draw(stream, num_choices, count))


def _draw(stream: np.ndarray, num_choices: int, count: int) -> np.ndarray:
    column = np.arange(count, dtype=np.uint64)
    choice = _numbers(stream[:, None] + column * _POSITION, num_choices)
    open_row, num_drawn = np.arange(len(stream)), count
    while open_row.size:
        ascending = np.sort(choice[open_row], axis=1)
        again = np.zeros(ascending.shape, bool)
        again[:, 1:] = ascending[:, 1:] == ascending[:, :-1]
        row, column = again.nonzero()
        position = (column + num_drawn).astype(np.uint64)
        ascending[again] = _numbers(stream[open_row[row]] + position * _POSITION, num_choices)
        choice[open_row] = ascending
        open_row, num_drawn = open_row[again.any(axis=1)], num_drawn + count
    return choice


# SplitMix64 (Steele et al., 2014), begun at a hash of the seed and the row.
_POSITION, _ROW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _numbers(state: np.ndarray, num_choices: int) -> np.ndarray:
    """Numbers below ``num_choices``, which 53 random bits tell apart."""
    uniform = (_hash(state) >> np.uint64(11)).astype(np.float64)
    uniform *= num_choices * 2.**-53
    return uniform.astype(np.int64)


def _hash(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


def _complement(left_out: np.ndarray, num_choices: int) -> Tensor:
    num_rows, num_left_out = left_out.shape
    stays = torch.ones(num_rows, num_choices, dtype=torch.bool)
    stays.scatter_(1, torch.from_numpy(left_out), False)
    return stays.nonzero()[:, 1].view(num_rows, num_choices - num_left_out)
