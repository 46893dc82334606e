"""Mixing of the random walk along an attention graph: how fast the walk forgets its start.

::

    python -m analysis.mixing
    python -m analysis.mixing --pattern 'SlidingWindow(4)' 'SlidingWindow(2) | RandomKeys(4)'
    python -m analysis.mixing --pattern 'SlidingWindow(8)' --n 256 --steps 4000 --lazy true
"""

from analysis.mixing.question import Mixing, mixing

__all__ = ['Mixing', 'mixing']
