"""Distances of walks from their limits, step by step."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from analysis.mixing.limits import ROUNDING

_STARTS_AT_ONCE = 256


def distances(walk: sp.csr_array, sources: np.ndarray, limit: np.ndarray, steps: int,
              teleport: float = 0.) -> np.ndarray:
    """Return the distance of a random walk from its limit after 0, 1, ... steps, a float64 array of
    at most ``steps + 1`` values.

    The distance is the total variation between the walk's distribution and its limit, the largest
    over all sources. The array ends when only rounding errors remain.

    Args:
        walk: Transition matrix ``[n, n]``.
        sources: The tokens from which the walk starts, ``[starts]``.
        limit: The limit distribution for each start, ``[n, starts]``.
        steps: Maximum number of steps.
        teleport: Probability that a step returns to the start instead.
    """
    transpose = (1 - teleport) * walk.T.tocsr()
    distance, last = np.zeros(steps + 1), 0
    blocks = [slice(first, first + _STARTS_AT_ONCE)
              for first in range(0, len(sources), _STARTS_AT_ONCE)]
    with tqdm(total=len(blocks) * steps, desc='walking', unit='step', delay=2,
              disable=None) as progress:
        for block in blocks:
            seat = sources[block], np.arange(len(sources[block]))
            mass = np.zeros((walk.shape[0], len(sources[block])))
            mass[seat] = 1
            for step in range(steps + 1):
                farthest = total_variation(mass, limit[:, block]).max()
                distance[step] = max(distance[step], farthest)
                last = max(last, step)
                if farthest <= ROUNDING:
                    progress.update(steps - step)
                    break
                mass = transpose @ mass
                mass[seat] += teleport
                progress.update()
    return distance[:last + 1]


def total_variation(mass: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return the total variation distance between distributions and their limits, ``[starts]``.

    Each column of ``mass`` ``[n, starts]`` is the distribution of the walk from one start.
    """
    return np.abs(mass - limit).sum(axis=0) / 2
