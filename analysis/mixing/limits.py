"""What walks converge to, and what may keep them from it: closed classes and periods."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra
from scipy.sparse.linalg import ArpackNoConvergence, eigs
from tqdm import tqdm

ROUNDING = 1e-12  # of sums of probabilities; less than this is nothing
_LARGEST_DENSE = 4096  # tokens; a matrix of 128 MiB, solved in seconds
_PANEL = 128  # tokens that are censored before the others hear of it, in one product of matrices


def closed_classes_of(walk: sp.csr_array, component: np.ndarray) -> list[np.ndarray]:
    """The components that no step leaves, as arrays of tokens."""
    token, target = walk.nonzero()
    leaving = component[token][component[token] != component[target]]
    return [np.flatnonzero(component == number)
            for number in np.setdiff1d(np.arange(component.max() + 1), leaving)]


def period_of(walk: sp.csr_array) -> int:
    """The greatest common divisor of the lengths of all closed walks of an irreducible walk."""
    depth = dijkstra(walk, indices=0, unweighted=True).astype(int)
    token, target = walk.nonzero()
    return int(np.gcd.reduce(depth[token] + 1 - depth[target]))


def stationary_distribution(walk: sp.csr_array, closed: list[np.ndarray],
                            is_reversible: bool) -> np.ndarray:
    """That which weighs each closed class by its size. Of more than ``_LARGEST_DENSE`` tokens,
    what is below ``ROUNDING`` is 0."""
    stationary = np.zeros(walk.shape[0])
    for members in closed:
        if is_reversible:
            mass = np.diff(walk.indptr)[members].astype(float)
        else:
            mass = _stationary_of_class(walk[members][:, members])
        stationary[members] = mass / mass.sum() * len(members)
    return stationary / stationary.sum()


def _stationary_of_class(walk: sp.csr_array) -> np.ndarray:
    n = walk.shape[0]
    if n <= _LARGEST_DENSE:
        # Each token has a step to one that stays longer, so that no divisor is below 1 / n.
        order = np.argsort(dijkstra(walk.T, indices=0, unweighted=True), kind='stable')
        mass = np.empty(n)
        mass[order] = _by_state_reduction(walk[order][:, order].toarray())
        return mass
    try:
        _, vector = eigs(walk.T, k=1, which='LR', v0=np.ones(n))
    except ArpackNoConvergence as error:
        raise ValueError(f"'graph' has {n} tokens and its walk mixes too slowly to find its "
                         f"stationary distribution; take at most {_LARGEST_DENSE}") from error
    mass = np.abs(vector[:, 0].real)
    return np.where(mass < ROUNDING * mass.sum(), 0, mass)


def _by_state_reduction(walk: np.ndarray) -> np.ndarray:
    """The stationary distribution of an irreducible walk, each probability to full relative
    accuracy, for nothing is subtracted: tokens are censored, the last first, and then get their
    mass from those before. The walk is overwritten.

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
    mass = np.zeros(n)
    mass[0] = 1
    for token in range(1, n):
        mass[token] = mass[:token] @ walk[:token, token]
        mass /= mass.sum()  # else it may overflow
    return mass


def restart_limits(walk: sp.csr_array, sources: np.ndarray, teleport: float) -> np.ndarray:
    """The limit of the restart walk from each source, ``[n, starts]``."""
    n = walk.shape[0]
    restart = np.zeros((n, len(sources)))
    restart[sources, np.arange(len(sources))] = teleport
    transpose = (1 - teleport) * walk.T.tocsr()
    if n <= _LARGEST_DENSE:
        return scipy.linalg.solve(np.eye(n) - transpose, restart, overwrite_a=True)
    mass = restart
    with tqdm(desc='limits of the restart walk', unit='step', delay=2, disable=None) as progress:
        while True:
            moved = transpose @ mass + restart
            change = np.abs(moved - mass).sum(axis=0).max()
            mass = moved
            progress.update()
            # What is missing is a geometric series that begins with the change.
            if change * (1 - teleport) <= teleport * ROUNDING:
                return mass
