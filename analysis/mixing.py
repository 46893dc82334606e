"""How fast the random walk of attention forgets where it started.

::

    python -m analysis.mixing
    python -m analysis.mixing --pattern 'SlidingWindow(4)' 'SlidingWindow(2) | RandomKeys(4)'
    python -m analysis.mixing --pattern 'SlidingWindow(8)' --n 256 --steps 4000 --lazy true
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from matplotlib.figure import Figure
from scipy.sparse.csgraph import dijkstra
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh
from tqdm import tqdm

from analysis.command import Results, ask
from analysis.graphs import GraphLike
from analysis.result import Result
from analysis.walk import (
    check_count,
    check_probability,
    component_eigenvalues,
    is_symmetric,
    strong_components,
    uniform_attention,
)

_LARGEST_DENSE = 4096  # tokens; a matrix of 128 MiB, solved in seconds
_LARGEST_SYMMETRIC = 2048  # for all eigenvalues in seconds
_LARGEST_GENERAL = 1024
_ALL_STARTS_UP_TO = 2048
_SAMPLED_STARTS = 64
_STARTS_AT_ONCE = 256
_LARGEST_LIMIT = 2**27  # entries, 1 GiB
_ROUNDING = 1e-12
_LOWEST_DRAWN = 1e-6


@dataclass(frozen=True)
class Mixing(Result):
    """How far the walk is from its limit, step by step."""

    num_tokens: int
    starts: int  #: From how many tokens the walk was started; see ``all_starts``.
    all_starts: bool
    is_reversible: bool
    closed_classes: int
    period: int
    beta: float | None  #: Second largest modulus of the walk's eigenvalues.
    sigma: float | None  #: What a step multiplies the chi-squared distance by at most.
    epsilon: float
    mixing_time: int | None  #: Steps until the distance is at most ``epsilon``.
    mixing_time_bound: int | None  #: The same, read off the bound.
    reason: str | None  #: Why there is no mixing time.
    teleport: float
    restart_mixing_time: int | None
    restart_seed_mass: float  #: What the restart walk leaves at its seed at least.
    restart_from_stationary: float  #: From its limit to the plain walk's, at most over starts.
    stationary: np.ndarray
    distance: np.ndarray  #: Total variation, from 0 to 1, after 0, 1, ... steps.
    bound: np.ndarray  #: Never below ``distance``; empty without ``sigma``.
    restart_distance: np.ndarray
    restart_bound: np.ndarray


def mixing(
    graph: GraphLike,
    *,
    epsilon: float = 0.25,
    steps: int = 512,
    lazy: bool = False,
    teleport: float = 0.1,
    starts: int | None = None,
    starts_seed: int = 0,
) -> Mixing:
    r"""Mixing of the walk that moves from a query to one of its keys, all alike.

    .. math::
        d(t) = \max_s \tfrac{1}{2} \lVert e_s^\top P^t - \pi^\top \rVert_1 \le
        \tfrac{1}{2} \sqrt{1 / \pi_{\min} - 1} \; \sigma^t, \qquad
        t_{\mathrm{mix}}(\epsilon) = \min \{t : d(t) \le \epsilon\}

    :math:`\sigma` is the second singular value of
    :math:`\Pi^{1/2} P \, \Pi^{-1/2}`, of which :math:`\sqrt\pi` is the first. On a symmetric
    graph, whose walk is reversible, :math:`\sigma = \beta`, the second largest modulus of the
    eigenvalues; on a d-regular one, where :math:`\pi_{\min} = 1/n`, this is the theorem of the
    paper with the constant that its norms allow: :math:`\lVert\cdot\rVert_1 \le \sqrt{n}
    \lVert\cdot\rVert_2`, half of which is total variation. What the paper names spectral gap is
    :math:`\beta d`; a small one mixes fast. On a directed graph :math:`\beta` is but the rate in
    the end, and :math:`\beta^t` bounds nothing.

    The theorem is about this plain walk. Diffusion restarts at its seed, so it never forgets it:

    .. math::
        p_{t+1} = (1 - a) P^\top p_t + a e_s, \quad \pi_s = a (I - (1 - a) P^\top)^{-1} e_s, \quad
        \tfrac{1}{2} \lVert p_t - \pi_s \rVert_1 \le (1 - a)^{t+1}

    from :math:`p_0 = e_s`, on any graph.

    A query without keys stays where it is. If several sets of tokens cannot be left, the walk has
    many stationary distributions; the one that weighs each set by its size is taken, and the
    distance does not go to 0.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        epsilon: Total variation below which the walk counts as mixed.
        steps: How many steps are walked at most.
        lazy: Stay with probability one half, which makes every period 1.
        teleport: Probability a of a restart.
        starts: From how many tokens, drawn at random, the walk starts. If omitted, from all up to
            2,048 tokens and from 64 beyond. From a sample, distances are lower bounds.
        starts_seed: Seed of that draw.

    Returns:
        Mixing. ``beta`` of a directed graph of more than 1,024 tokens is good to six digits, or
        ``None`` if it was not found. ``sigma`` is ``None`` where the walk leaves some tokens for
        good, or mixes too slowly to find it.

    Raises:
        TypeError, ValueError: An argument is wrong, or the graph is too large to find its
            stationary distribution.

    Source: Diffuser, Theorem 3 and Eq. S.7; for reversible walks Diaconis and Stroock, Geometric
    bounds for eigenvalues of Markov chains (1991), Proposition 3; for others Fill, Eigenvalue
    bounds on convergence to stationarity for nonreversible Markov chains (1991).

    Example:
        >>> import networkx as nx
        >>> result = mixing(nx.complete_graph(5))
        >>> round(result.beta, 6), result.mixing_time
        (0.25, 1)
    """
    check_probability('epsilon', epsilon)
    check_probability('teleport', teleport)
    check_count('steps', steps)
    walk = uniform_attention(graph, keyless='stay')
    is_reversible = is_symmetric(walk)
    component = strong_components(walk)
    closed = _closed_classes(walk, component)
    sources = _sources(walk.shape[0], starts, starts_seed)
    stationary = _stationary(walk, closed, is_reversible)
    if lazy:
        walk = sp.csr_array((walk + sp.eye_array(*walk.shape)) / 2)
    period = math.lcm(*(_period(walk[members][:, members]) for members in closed))

    if is_reversible:
        beta = sigma = _second_of_reversible(walk, stationary)
    else:
        beta, sigma = _second_modulus(walk, component), _contraction(walk, stationary)
    plain_limit = np.broadcast_to(stationary[:, None], (len(stationary), len(sources)))
    distance = _distances(walk, sources, plain_limit, steps)
    bound, mixing_time_bound = np.array([]), None
    if sigma is not None:
        at_start = math.sqrt(1 / stationary.min() - 1) / 2 if len(stationary) > 1 else 0.
        bound = np.minimum(at_start * sigma ** np.arange(len(distance)), 1)
        mixing_time_bound = _time_of_bound(at_start, sigma, epsilon)
    mixing_time = _first(distance <= epsilon)

    restart_limit = _personalised(walk, sources, teleport)
    restart_distance = _distances(walk, sources, restart_limit, steps, teleport)
    return Mixing(
        num_tokens=len(stationary), starts=len(sources),
        all_starts=len(sources) == len(stationary), is_reversible=is_reversible,
        closed_classes=len(closed), period=period, beta=beta, sigma=sigma, epsilon=epsilon,
        mixing_time=mixing_time, mixing_time_bound=mixing_time_bound,
        reason=_reason(len(closed), period, steps) if mixing_time is None else None,
        teleport=teleport, restart_mixing_time=_first(restart_distance <= epsilon),
        restart_seed_mass=float(restart_limit[sources, np.arange(len(sources))].min()),
        restart_from_stationary=float(_total_variation(restart_limit, plain_limit).max()),
        stationary=stationary, distance=distance, bound=bound, restart_distance=restart_distance,
        restart_bound=(1 - teleport) ** np.arange(1, len(restart_distance) + 1))


def _sources(n: int, starts: int | None, seed: int) -> np.ndarray:
    if starts is None:
        starts = n if n <= _ALL_STARTS_UP_TO else _SAMPLED_STARTS
    check_count('starts', starts)
    starts = min(starts, n)
    if starts * n > _LARGEST_LIMIT:
        raise ValueError(f"'starts' must be at most {_LARGEST_LIMIT // n} for {n} tokens (got "
                         f"{starts})")
    check_count('starts_seed', seed, at_least=0)
    return np.sort(np.random.default_rng(seed).choice(n, starts, replace=False))


# The walk without restarts ###########################################################


def _closed_classes(walk: sp.csr_array, component: np.ndarray) -> list[np.ndarray]:
    """The components that no step leaves, as arrays of tokens."""
    token, target = walk.nonzero()
    leaving = component[token][component[token] != component[target]]
    return [np.flatnonzero(component == number)
            for number in np.setdiff1d(np.arange(component.max() + 1), leaving)]


def _period(walk: sp.csr_array) -> int:
    """The greatest common divisor of the lengths of all closed walks of an irreducible walk."""
    depth = dijkstra(walk, indices=0, unweighted=True).astype(int)
    token, target = walk.nonzero()
    return int(np.gcd.reduce(depth[token] + 1 - depth[target]))


def _stationary(walk: sp.csr_array, closed: list[np.ndarray], is_reversible: bool) -> np.ndarray:
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
        balance = walk.T.toarray() - np.eye(n)
        balance[-1] = 1  # one equation is the sum of the others; the total mass takes its place
        return scipy.linalg.solve(balance, np.eye(n)[-1], overwrite_a=True)
    try:
        _, vector = eigs(walk.T, k=1, which='LR', v0=np.ones(n))
    except ArpackNoConvergence as error:
        raise ValueError(f"'graph' has {n} tokens and its walk mixes too slowly to find its "
                         f"stationary distribution; take at most {_LARGEST_DENSE}") from error
    return np.abs(vector[:, 0].real)


def _second_of_reversible(walk: sp.csr_array, stationary: np.ndarray) -> float | None:
    n, root = len(stationary), np.sqrt(stationary)
    similar = sp.csr_array(sp.diags_array(root) @ walk @ sp.diags_array(1 / root))
    if n <= _LARGEST_SYMMETRIC:
        modulus = np.sort(np.abs(np.linalg.eigvalsh(similar.toarray())))
        return float(modulus[-2]) if n > 1 else 0.
    return _norm_without(root, similar.dot)


def _second_modulus(walk: sp.csr_array, component: np.ndarray) -> float | None:
    if np.bincount(component).max() <= _LARGEST_GENERAL:
        modulus = np.abs(component_eigenvalues(walk, component))
        return float(modulus[1]) if len(modulus) > 1 else 0.
    if component.max() > 0:
        return None
    try:
        # Those behind the second lie close: to full precision it would take hours.
        values = eigs(walk, k=2, which='LM', v0=_some_vector(walk.shape[0]), ncv=60, tol=1e-6,
                      maxiter=100, return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(np.sort(np.abs(values))[-2])


def _contraction(walk: sp.csr_array, stationary: np.ndarray) -> float | None:
    r"""The second singular value of :math:`\Pi^{1/2} P \, \Pi^{-1/2}`."""
    if not stationary.min() > 0:
        return None
    root = np.sqrt(stationary)
    similar = sp.csr_array(sp.diags_array(root) @ walk @ sp.diags_array(1 / root))
    if len(root) <= _LARGEST_GENERAL:
        values = scipy.linalg.svdvals(similar.toarray())
        return float(values[1]) if len(values) > 1 else 0.
    square = _norm_without(root, lambda vector: similar.T @ (similar @ vector))
    return None if square is None else math.sqrt(square)


def _norm_without(top: np.ndarray, product: Callable[[np.ndarray], np.ndarray]) -> float | None:
    """The norm of a symmetric operator whose eigenvector ``top`` of eigenvalue 1 is taken out."""
    deflated = LinearOperator((len(top), len(top)), dtype=float,
                              matvec=lambda vector: product(vector) - top * (top @ vector))
    try:
        value = eigsh(deflated, k=1, which='LM', v0=_some_vector(len(top)), ncv=60, maxiter=300,
                      return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(abs(value[0]))


def _some_vector(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)


def _time_of_bound(at_start: float, sigma: float, epsilon: float) -> int | None:
    if at_start <= epsilon:
        return 0
    if sigma >= 1 - _ROUNDING:
        return None
    return max(1, math.ceil(math.log(epsilon / at_start) / math.log(max(sigma, 1e-300))))


def _reason(closed_classes: int, period: int, steps: int) -> str:
    if closed_classes > 1:
        return f'{closed_classes} sets of tokens are never left'
    if period > 1:
        return f'period {period}'
    return f'more than {steps} steps'


# Distances ###########################################################################


def _personalised(walk: sp.csr_array, sources: np.ndarray, teleport: float) -> np.ndarray:
    """The limit of the restart walk from each source, ``[n, starts]``."""
    n = walk.shape[0]
    restart = np.zeros((n, len(sources)))
    restart[sources, np.arange(len(sources))] = teleport
    transpose = (1 - teleport) * walk.T.tocsr()
    if n <= _LARGEST_DENSE:
        return scipy.linalg.solve(np.eye(n) - transpose, restart, overwrite_a=True)
    mass = restart
    with tqdm(desc='limits of the restart walk', unit='step', delay=2) as progress:
        while True:
            moved = transpose @ mass + restart
            change = np.abs(moved - mass).sum(axis=0).max()
            mass = moved
            progress.update()
            # What is missing is a geometric series that begins with the change.
            if change * (1 - teleport) <= teleport * _ROUNDING:
                return mass


def _distances(walk: sp.csr_array, sources: np.ndarray, limit: np.ndarray, steps: int,
               teleport: float = 0.) -> np.ndarray:
    """The largest total variation over the sources, step by step until all that is left is
    rounding."""
    transpose = (1 - teleport) * walk.T.tocsr()
    distance, last = np.zeros(steps + 1), 0
    blocks = [slice(first, first + _STARTS_AT_ONCE)
              for first in range(0, len(sources), _STARTS_AT_ONCE)]
    with tqdm(total=len(blocks) * steps, desc='walking', unit='step', delay=2) as progress:
        for block in blocks:
            seat = sources[block], np.arange(len(sources[block]))
            mass = np.zeros((walk.shape[0], len(sources[block])))
            mass[seat] = 1
            for step in range(steps + 1):
                farthest = _total_variation(mass, limit[:, block]).max()
                distance[step] = max(distance[step], farthest)
                last = max(last, step)
                if farthest <= _ROUNDING:
                    progress.update(steps - step)
                    break
                mass = transpose @ mass
                mass[seat] += teleport
                progress.update()
    return distance[:last + 1]


def _total_variation(mass: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.abs(mass - limit).sum(axis=0) / 2


def _first(is_true: np.ndarray) -> int | None:
    return int(is_true.argmax()) if is_true.any() else None


# Drawing #############################################################################


def draw(results: Results) -> Figure:
    """Total variation by step, plain and with restarts; bounds are dashed."""
    figure = Figure(figsize=(10, 4.6), layout='constrained')
    plain, restart = figure.subplots(1, 2, sharey=True)
    for number, (label, samples) in enumerate(results.items()):
        for position, sample in enumerate(samples):
            style = {'color': f'C{number % 10}', 'alpha': 1 if len(samples) == 1 else 0.5,
                     'label': None if position else label}
            plain.plot(sample.distance, **style)
            plain.plot(sample.bound, '--', **style | {'label': None})
            restart.plot(sample.restart_distance, **style)
    longest = max((sample for samples in results.values() for sample in samples),
                  key=lambda sample: len(sample.restart_bound))
    restart.plot(longest.restart_bound, '--', color='0.4',
                 label=f'bound (right: {1 - longest.teleport:.3g}$^{{t+1}}$)')
    plain.set(title='Plain walk, to its stationary distribution', yscale='log',
              ylim=(_LOWEST_DRAWN, 1.5), xlabel='steps',
              ylabel='total variation from the worst start')
    restart.set(title='Walk with restarts, to the limit of its seed', xlabel='steps')
    for axes in (plain, restart):
        axes.axhline(longest.epsilon, color='0.4', linestyle=':',
                     label=rf'$\epsilon$ = {longest.epsilon:g}')
        axes.grid(alpha=0.3)
    handles, labels = restart.get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=2)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    ask(mixing, draw, arguments, name='mixing',
        pattern='SlidingWindow(2) | RandomKeys(2)', n=512)


if __name__ == '__main__':
    main()
