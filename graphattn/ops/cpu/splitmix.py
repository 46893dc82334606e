"""SplitMix64 for compiled loops: random bits as a function of a seed and a number."""

from __future__ import annotations

from numba import uint64

from graphattn._jit import jit
from graphattn._splitmix import FIRST, SECOND, STEP


@jit(inline=True)
def random_bits(state, number):
    """Return the 64 random bits number ``number`` of the stream of the seed ``state``."""
    return mix(state + uint64(number) * uint64(STEP))


@jit(inline=True)
def mix(bits):
    # the same as graphattn._splitmix.mix
    bits = (bits ^ (bits >> uint64(30))) * uint64(FIRST)
    bits = (bits ^ (bits >> uint64(27))) * uint64(SECOND)
    return bits ^ (bits >> uint64(31))
