"""Lemmas 6 and 7 in the proof of Diffuser's Theorem 1, for one function on a small grid."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from analysis.result import Result
from analysis.universality.selective_shift import (
    Tokens,
    check_grid,
    first_tokens,
    heads_as_printed,
    heads_as_run,
    sequences_in_order,
    shifted_by_first,
)

NODES = 3  # Gauss-Legendre nodes along each side of a cell


@dataclass(frozen=True)
class PiecewiseConstant(Result):
    """The answer to whether the statements of Lemmas 6 and 7 in Diffuser's proof hold for one
    function on a small grid."""

    cells: int
    """Number of cells of the grid, and of quantised sequences."""
    distance: float
    """Lemma 6: the distance of the function to its piecewise constant approximation."""
    bound: float
    """Upper bound of the distance by the function's Lipschitz constant, proportional to delta."""
    represented: bool
    """Lemma 7: whether the codes of Lemma 8 differ wherever values differ, so that feed-forward
    layers can map each code to its value, assuming S.18 and S.19."""
    represented_as_run: bool
    """The same with the actual outputs of the two heads."""
    left_as_run: float
    """Minimum distance of any function of those codes to the piecewise constant one."""


def piecewise_constant(tokens: int = 3, steps: int = 4) -> PiecewiseConstant:
    r"""Check Lemmas 6 and 7 for d = 1 and :math:`f(X)_i = \sin(x_i + \sum_j x_j)`.

    Each value depends on all tokens. The piecewise constant function has the value at the lowest
    corner of each cell, and

    .. math::
        d_2(f, \bar f) = \Big( \int_{[0, 1)^n} \lVert f(X) - \bar f(X) \rVert_2^2 \, dX
        \Big)^{1/2} \le n \sqrt{n + 3} \, \delta,

    because :math:`\lVert \nabla f_i \rVert \le \sqrt{n + 3}`, and a cell's diagonal is
    :math:`\sqrt{n} \, \delta`. The integral is computed by Gauss-Legendre quadrature in each cell.

    For Lemma 7, tokens are quantised, positions (S.15) are added, and Lemma 8 assigns a code to
    each token of each sequence. The feed-forward layers of Step 3 can map codes to values if no
    code has two values. With the actual heads they cannot, because these miss most tokens, see
    :func:`analysis.universality.selective_shift`; the best function of the codes, their mean value,
    is then off by ``left_as_run`` in :math:`d_2`.

    Args:
        tokens (int): Number of tokens n.
        steps (int): Number of steps of the grid, :math:`1 / \delta`.

    Returns:
        PiecewiseConstant.

    Raises:
        TypeError: An argument is not an int.
        ValueError: There are fewer than 3 tokens or 2 steps, or too many sequences.

    Source: Feng et al., "Diffuser" (2023), App. C, Lemmas 6 and 7.

    Example:
        >>> from analysis.universality import piecewise_constant
        >>> result = piecewise_constant(tokens=3, steps=4)
        >>> result.distance < result.bound, result.represented, result.represented_as_run
        (True, True, False)
    """
    check_grid(tokens, steps)
    sequences = list(sequences_in_order(tokens, steps))
    # Without positions, in [0, 1), the domain of the function.
    corners = np.array([[float(number % 1) for number in sequence] for sequence in sequences])
    values = _function(corners)
    granted, run = ([shifted_by_first((first, *sequence[1:]), steps) for sequence, first in zip(
        sequences, first_tokens(sequences, heads(sequences, steps)))]
        for heads in (heads_as_printed, heads_as_run))
    left, left_as_run = (_left(numbers, values) for numbers in (granted, run))
    return PiecewiseConstant(
        cells=len(sequences), distance=_distance(corners, values, steps),
        bound=tokens * math.sqrt(tokens + 3) / steps, represented=left == 0.,
        represented_as_run=left_as_run == 0., left_as_run=left_as_run)


def _function(x: np.ndarray) -> np.ndarray:
    """Return the values of the test function f on sequences ``[..., n]``."""
    return np.sin(x + x.sum(axis=-1, keepdims=True))


def _distance(corners: np.ndarray, values: np.ndarray, steps: int) -> float:
    n = corners.shape[1]
    node, weight = np.polynomial.legendre.leggauss(NODES)
    along = [(node + 1) / (2 * steps)] * n
    inside = np.stack(np.meshgrid(*along, indexing='ij'), axis=-1).reshape(-1, n)
    share = np.prod(np.stack(np.meshgrid(*[weight / 2] * n, indexing='ij')), axis=0).reshape(-1)
    squares = [share @ ((_function(corner + inside) - value)**2).sum(axis=1)
               for corner, value in zip(corners, values)]
    return math.sqrt(np.mean(squares))


def _left(numbers: list[Tokens], values: np.ndarray) -> float:
    """Return the smallest distance between ``values`` and a function that depends only on the code
    of a token.

    It is 0 if equal codes always have equal values.

    Args:
        numbers: The codes of the tokens of each sequence.
        values: The value of each token, ``[num_sequences, num_tokens]``.
    """
    of_number: defaultdict[Fraction, list[float]] = defaultdict(list)
    for sequence, row in zip(numbers, values):
        for number, value in zip(sequence, row.tolist()):
            of_number[number].append(value)
    squares = sum(len(found) * np.var(found) for found in of_number.values()
                  if len(set(found)) > 1)
    return math.sqrt(squares / len(values))
