"""Random bits of compiled loops.

Every row has a random stream of its own, which begins at a hash of the seed and the row, so that
the graph does not depend on the distribution of rows to threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import uint64

from graphattn._jit import jit
from graphattn._splitmix import ROW
from graphattn.ops.cpu import splitmix


def draw_seed(generator: torch.Generator | None) -> np.uint64:
    """Draw a seed for all rows from a torch generator."""
    seed = torch.empty((), dtype=torch.long).random_(-2**63, None, generator=generator)
    return np.uint64(seed.item() % 2**64)


def seed_from_row(seed: np.uint64, row: int) -> np.uint64:
    """Return the seed for rows that begin at ``row`` of ``seed``."""
    return np.uint64((int(seed) + row * ROW) % 2**64)


@jit(inline=True)
def stream_of(seed, row):
    """Return the stream of a row."""
    return splitmix.mix(seed + uint64(row) * uint64(ROW))


@jit(inline=True)
def random_bits(stream, position):
    """Return 64 random bits of a position, from 0 on."""
    return splitmix.random_bits(stream, uint64(position) + uint64(1))


@jit(inline=True)
def uniform(bits):
    """Turn 64 random bits into a value in [0, 1)."""
    return np.float64(bits >> uint64(11)) * 2.**-53
