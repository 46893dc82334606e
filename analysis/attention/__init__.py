"""Rank, capacity and direction of an attention matrix.

::

    python -m analysis.attention --checkpoint runs/digits/sbm
    python -m analysis.attention --graph attention.npy
    python -m analysis.attention --pattern 'SlidingWindow(8) & Causal()' 'Causal()' --n 256
"""

from analysis.attention.directed import circulation, directed_laplacian
from analysis.attention.direction import asymmetry
from analysis.attention.question import AttentionMatrix, attention

__all__ = ['AttentionMatrix', 'asymmetry', 'attention', 'circulation', 'directed_laplacian']
