"""Conditions of universal approximation for attention patterns that layers apply in turn.

::

    python -m analysis.universality
    python -m analysis.universality --pattern 'SlidingWindow(2)' 'Strided(8)' --n 64
    python -m analysis.universality --pattern diffuser --n 256 --hops 5
    python -m analysis.universality --pattern 'Full() - SlidingWindow(0)' --steps 8

The package also covers SparseBERT's theorem for attention without the diagonal, runs its
construction and those of Diffuser's Lemmas 6 to 8 on a grid, and has Lemmas 1 and 2 of
SBM-Transformer, App. A. Results for fixed masks say little about a model that *samples* them: its
Theorem 1 bounds the distance to the expected output E[g(X)], which is not the output under the
expected mask, because softmax is not linear in the mask.
"""

from analysis.universality.patterns import Clusters, Relays, is_rectangle, lemma_2
from analysis.universality.piecewise_constant import PiecewiseConstant, piecewise_constant
from analysis.universality.question import (
    DiffusionUniversality,
    Universality,
    diffusion_universality,
    universality,
)
from analysis.universality.random_graphs import (
    expected_hamiltonian_cycles,
    hamiltonian_path_bound,
    lemma_1_density,
)
from analysis.universality.selective_shift import SelectiveShift, selective_shift
from analysis.universality.without_diagonal import (
    ThreeTokens,
    is_full_without_diagonal,
    three_tokens,
)

__all__ = ['Clusters', 'DiffusionUniversality', 'PiecewiseConstant', 'Relays', 'SelectiveShift',
           'ThreeTokens', 'Universality', 'diffusion_universality', 'expected_hamiltonian_cycles',
           'hamiltonian_path_bound', 'is_full_without_diagonal', 'is_rectangle', 'lemma_1_density',
           'lemma_2', 'piecewise_constant', 'selective_shift', 'three_tokens', 'universality']
