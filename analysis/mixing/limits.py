"""Limits of random walks, and the obstacles to convergence: closed classes and periods."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from scipy.linalg import solve_triangular
from scipy.sparse.csgraph import dijkstra
from scipy.sparse.linalg import ArpackNoConvergence, eigs, splu
from tqdm import tqdm

from analysis.walk import members_of

ROUNDING = 1e-12  # rounding error of sums of probabilities; smaller values count as 0
MAX_DENSE = 4096  # number of tokens; a matrix of this size takes 128 MiB and is solved in seconds
_CERTAIN = 1e-9  # worst accuracy of the limits that are found by taking steps
_MAX_STEPS = 2000
# number of tokens censored together, so that one matrix product updates all other tokens
_PANEL = 128


def closed_classes_of(walk: sp.csr_array, component: np.ndarray) -> list[np.ndarray]:
    """Return the components that a random walk never leaves, each as an array of tokens.

    Args:
        walk: Transition matrix ``[n, n]``.
        component: The strongly connected component of each token, ``[n]``.
    """
    token, target = walk.nonzero()
    leaving = component[token][component[token] != component[target]]
    is_left = np.zeros(component.max() + 1, dtype=bool)
    is_left[leaving] = True
    return [members for members in members_of(component) if not is_left[component[members[0]]]]


def walk_within(walk: sp.csr_array, members: np.ndarray) -> sp.csr_array:
    """Return the transition matrix of a random walk among the tokens ``members``, which are sorted
    and which the walk never leaves. Only the rows of these tokens are read."""
    rows = walk[members]
    return sp.csr_array((rows.data, np.searchsorted(members, rows.indices), rows.indptr),
                        shape=(len(members), len(members)))


def period_of(walk: sp.csr_array) -> int:
    """Return the period of an irreducible walk: the greatest common divisor of the lengths of its
    closed walks."""
    if walk.diagonal().any():
        return 1
    depth = dijkstra(walk, indices=0, unweighted=True).astype(int)
    token, target = walk.nonzero()
    return int(np.gcd.reduce(depth[token] + 1 - depth[target]))


def stationary_distribution(walk: sp.csr_array, closed: list[np.ndarray],
                            is_reversible: bool) -> np.ndarray:
    """Return the stationary distribution of a random walk, float64 ``[n]``.

    Beyond ``MAX_DENSE`` tokens, values below ``ROUNDING`` are 0.

    Args:
        walk: Transition matrix ``[n, n]``.
        closed: The classes of tokens that the walk never leaves. The distribution weights each
            class by its size.
        is_reversible: Whether every edge has a reverse edge.
    """
    stationary = np.zeros(walk.shape[0])
    degree = np.diff(walk.indptr).astype(float)
    for members in tqdm(closed, desc='stationary distribution', unit='class', delay=2,
                        disable=None):
        if is_reversible or len(members) == 1:
            mass = degree[members]
        else:
            mass = _stationary_of_class(walk_within(walk, members))
        stationary[members] = mass / mass.sum() * len(members)
    return stationary / stationary.sum()


def _stationary_of_class(walk: sp.csr_array) -> np.ndarray:
    n = walk.shape[0]
    if n <= MAX_DENSE:
        # Each token has a step to a token that is censored later, so no divisor is below 1 / n.
        order = np.argsort(dijkstra(walk.T, indices=0, unweighted=True), kind='stable')
        mass = np.empty(n)
        mass[order] = _by_state_reduction(walk[order][:, order].toarray())
        return mass
    try:
        _, vector = eigs(walk.T, k=1, which='LR', v0=np.ones(n))
    except ArpackNoConvergence as error:
        raise ValueError(f"'graph' must mix faster, because its stationary distribution did not "
                         f"converge with {n} tokens; use at most {MAX_DENSE} tokens") from error
    mass = np.abs(vector[:, 0].real)
    return np.where(mass < ROUNDING * mass.sum(), 0, mass)


def _by_state_reduction(walk: np.ndarray) -> np.ndarray:
    """Return the stationary distribution of an irreducible walk, float64 ``[n]``. The dense matrix
    ``walk`` is overwritten.

    Tokens are removed one by one (:func:`_censor`), the last first, and then receive their mass
    from earlier tokens. Nothing is subtracted, so each probability has full relative accuracy.
    """
    _censor(walk)
    mass = np.zeros(len(walk))
    mass[0] = 1
    for token in range(1, len(walk)):
        mass[token] = mass[:token] @ walk[:token, token]
        mass /= mass.sum()  # avoids overflow
    return mass


def _censor(walk: np.ndarray) -> None:
    """Remove all tokens except the first from a random walk, in place, the last token first, so
    that steps through removed tokens become direct steps.

    Afterwards, the entries below the diagonal are the steps from each token to earlier tokens when
    later tokens are censored. The entries above the diagonal are the visits of each token per visit
    of an earlier token.

    Source: Grassmann, Taksar and Heyman, Regenerative analysis and steady state distributions for
    Markov chains (1985); O'Cinneide, Entrywise perturbation theory and error analysis for Markov
    chains (1993).
    """
    n = len(walk)
    for end in range(n, 1, -_PANEL):
        begin = max(end - _PANEL, 1)
        for token in range(end - 1, begin - 1, -1):
            censored = slice(token + 1, end)
            walk[token, :token] += walk[token, censored] @ walk[censored, :token]
            walk[:token, token] += walk[:token, censored] @ walk[censored, token]
            walk[:token, token] /= walk[token, :token].sum()
        walk[:begin, :begin] += walk[:begin, begin:end] @ walk[begin:end, :begin]


def restart_limits(walk: sp.csr_array, sources: np.ndarray, teleport: float,
                   stationary: np.ndarray) -> np.ndarray:
    """Return the limit distribution of the walk that restarts at its source, for each source,
    ``[n, starts]``.

    Args:
        walk: Transition matrix ``[n, n]`` of the plain walk.
        sources: The starts of the walks.
        teleport: Probability of a restart.
        stationary: A stationary distribution of the walk. There may be others.

    Raises:
        ValueError: The graph has more than ``MAX_DENSE`` tokens and the walk forgets its start too
            slowly for a teleport this small, so that the limit is not accurate.
    """
    if walk.shape[0] <= MAX_DENSE:
        return _limits_by_censoring(walk, sources, teleport)
    limits = _limits_by_steps(walk, sources, teleport, stationary)
    return _limits_by_solving(walk, sources, teleport) if limits is None else limits


def _limits_by_censoring(walk: sp.csr_array, sources: np.ndarray, teleport: float) -> np.ndarray:
    """Return the limit distributions of the restart walk, ``[n, starts]``, solved without
    subtractions.

    The limits have full relative accuracy at any teleport. An additional token is added to the
    walk, and every restart leads to it.

    Args:
        walk: Transition matrix ``[n, n]``.
        sources: The token at which each walk starts and restarts.
        teleport: Probability of a restart.
    """
    n = walk.shape[0]
    ending = np.zeros((n + 1, n + 1))
    ending[1:, 0] = teleport
    ending[1:, 1:] = (1 - teleport) * walk.toarray()
    _censor(ending)
    leaving = np.tril(ending, -1).sum(axis=1)[1:]
    steps, visits = ending[1:, 1:], np.zeros((n, len(sources)))
    visits[sources, np.arange(len(sources))] = teleport
    lower, upper = np.diag(leaving) - np.tril(steps, -1), -np.triu(steps, 1)
    visits = solve_triangular(lower, visits, trans='T', lower=True, check_finite=False)
    return solve_triangular(upper, visits, trans='T', unit_diagonal=True, check_finite=False)


def _limits_by_steps(walk: sp.csr_array, sources: np.ndarray, teleport: float,
                     stationary: np.ndarray) -> np.ndarray | None:
    """Return the limit distributions of the restart walk, ``[n, starts]``, or ``None`` if it
    forgets its start too slowly.

    Steps are taken from each source until the walk has forgotten the source. The limit differs from
    the stationary distribution only by the remaining influence of the source.

    Args:
        walk: Transition matrix ``[n, n]``.
        sources: The token at which each walk starts and restarts.
        teleport: Probability of a restart.
        stationary: A stationary distribution of the walk without restarts.
    """
    transpose = (1 - teleport) * walk.T.tocsr()
    limits = np.repeat(stationary[:, None], len(sources), axis=1)
    left = -limits
    left[sources, np.arange(len(sources))] += 1
    for _ in tqdm(range(_MAX_STEPS), desc='limits of the restart walk', unit='step', delay=2,
                  disable=None):
        limits += teleport * left
        left = transpose @ left
        if np.abs(left).sum(axis=0).max() <= ROUNDING:
            return limits
    return None


def _limits_by_solving(walk: sp.csr_array, sources: np.ndarray, teleport: float) -> np.ndarray:
    """Return the limit distributions of slowly mixing restart walks, ``[n, starts]``, from a sparse
    factorisation.

    Graphs that mix slowly have small separators, so the factors of their matrix have few entries.

    Args:
        walk: Transition matrix ``[n, n]``.
        sources: The token at which each walk starts and restarts.
        teleport: Probability of a restart.
    """
    matrix = (sp.eye_array(walk.shape[0]) - (1 - teleport) * walk.T).tocsc()
    restart = np.zeros((walk.shape[0], len(sources)))
    restart[sources, np.arange(len(sources))] = teleport
    try:
        limits = splu(matrix, diag_pivot_thresh=0).solve(restart)
        limits /= limits.sum(axis=0)
        # A step contracts the distance between two distributions to at most 1 - teleport of it.
        error = np.abs(restart - matrix @ limits).sum(axis=0).max() / teleport
    except RuntimeError:  # the matrix is singular up to rounding errors
        error = math.inf
    if not error <= _CERTAIN:
        raise ValueError(f"'teleport' is too small for a slowly mixing graph of {walk.shape[0]:,} "
                         f"tokens (got {teleport:g}); pass a larger 'teleport', or use at most "
                         f"{MAX_DENSE:,} tokens")
    return limits
