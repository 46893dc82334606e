"""Random bits of compiled loops, by SplitMix64."""

from __future__ import annotations

from numba import uint64

from graphattn._jit import jit
from graphattn._splitmix import FIRST, SECOND, STEP


@jit(inline=True)
def random_bits(state, number):
    """Return 64 random bits of the stream that begins at ``state``."""
    return mix(state + uint64(number) * uint64(STEP))


@jit(inline=True)
def mix(bits):
    """Mix uint64 as :func:`graphattn._splitmix.mix` defines it."""
    bits = (bits ^ (bits >> uint64(30))) * uint64(FIRST)
    bits = (bits ^ (bits >> uint64(27))) * uint64(SECOND)
    return bits ^ (bits >> uint64(31))
