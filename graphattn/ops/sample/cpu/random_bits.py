"""Random bits of compiled loops. Each row has its own stream, a function of the seed and the row,
so the graph does not depend on which thread computes which row."""

from __future__ import annotations

import numpy as np
import torch
from numba import uint64

from graphattn._jit import jit
from graphattn._splitmix import ROW
from graphattn.ops.cpu import splitmix


def draw_seed(generator: torch.Generator | None) -> np.uint64:
    """Return a random seed from a generator of torch, or from its default generator for None."""
    seed = torch.empty((), dtype=torch.long).random_(-2**63, None, generator=generator)
    return np.uint64(seed.item() % 2**64)


def seed_from_row(seed: np.uint64, row: int) -> np.uint64:
    """Return a seed under which row 0 has the random bits of row ``row`` under ``seed``."""
    return np.uint64((int(seed) + row * ROW) % 2**64)


@jit(inline=True)
def stream_of(seed, row):
    return splitmix.mix(seed + uint64(row) * uint64(ROW))


@jit(inline=True)
def random_bits(stream, position):
    return splitmix.random_bits(stream, uint64(position) + uint64(1))


@jit(inline=True)
def uniform(bits):
    # float64 in [0, 1)
    return np.float64(bits >> uint64(11)) * 2.**-53
