"""Random bits of compiled loops.

Each row has its own stream of random bits, a function of the seed and the row. So the graph does
not depend on which thread computes which row.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import uint64

from graphattn._jit import jit
from graphattn._splitmix import ROW
from graphattn.ops.cpu import splitmix


def draw_seed(generator: torch.Generator | None) -> np.uint64:
    """Return a random seed from a generator of torch, or from torch's default generator for
    None."""
    seed = torch.empty((), dtype=torch.long).random_(-2**63, None, generator=generator)
    return np.uint64(seed.item() % 2**64)


def seed_from_row(seed: np.uint64, row: int) -> np.uint64:
    """Return a seed that gives row 0 the random bits of row ``row`` under ``seed``, row 1 those of
    the next row, and so on."""
    return np.uint64((int(seed) + row * ROW) % 2**64)


@jit(inline=True)
def stream_of(seed, row):
    """Return the state of the stream of random bits of a row, which :func:`random_bits` takes."""
    return splitmix.mix(seed + uint64(row) * uint64(ROW))


@jit(inline=True)
def random_bits(stream, position):
    """Return the 64 random bits at a position of a stream. Positions begin at 0."""
    return splitmix.random_bits(stream, uint64(position) + uint64(1))


@jit(inline=True)
def uniform(bits):
    """Return 64 random bits as a float64 in [0, 1)."""
    return np.float64(bits >> uint64(11)) * 2.**-53
