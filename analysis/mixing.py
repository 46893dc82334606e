"""Mixing of the random walk along an attention graph: how fast the walk forgets its start."""

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from analysis import walk as walks
from analysis.graphs import GraphLike, check_count, check_probability
from analysis.result import Result, token_values

__all__ = ['Mixing', 'mixing']

_ALL_STARTS_UP_TO = 2048
_SAMPLED_STARTS = 64
_MAX_LIMIT = 2**27  # entries, 1 GiB
_STARTS_AT_ONCE = 256


@dataclass(frozen=True)
class Mixing(Result):
    """The speed at which a random walk forgets its start: its distance from its limit after each
    step, and the same for the walk that restarts."""

    ONLY = {'': ('reason',)}
    num_tokens: int
    starts: int  #: Number of tokens from which the walk was started; see ``all_starts``.
    all_starts: bool
    #: Whether the walk, from the target of an edge (query) to its source (key), has no direction.
    is_reversible: bool
    closed_classes: int
    period: int
    beta: float | None  #: Second largest modulus of the walk's eigenvalues.
    sigma: float | None  #: Contraction factor of the chi-squared distance per step.
    epsilon: float
    mixing_time: int | None  #: Number of steps until the distance is at most ``epsilon``.
    mixing_time_bound: int | None  #: Number of steps until the bound is at most ``epsilon``.
    reason: str | None  #: The reason why there is no mixing time.
    teleport: float
    restart_mixing_time: int | None
    #: Minimum probability that the restart walk is at its seed, in the limit.
    restart_seed_mass: float
    #: Largest total variation between a limit of the restart walk and the limit of the plain walk.
    restart_from_stationary: float
    stationary: np.ndarray = token_values()
    distance: np.ndarray  #: Total variation, from 0 to 1, after 0, 1, ... steps.
    bound: np.ndarray  #: Upper bound of ``distance``; empty without ``sigma``.
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
    r"""Measure how fast the random walk along a graph mixes.

    A step moves from a query to one of its keys, all equally likely. With P the matrix of the walk
    and :math:`\pi` its stationary distribution, the distance after t steps is

    .. math::
        d(t) = \max_s \tfrac{1}{2} \lVert e_s^\top P^t - \pi^\top \rVert_1 \le
        \tfrac{1}{2} \sqrt{1 / \pi_{\min} - 1} \; \sigma^t, \qquad
        t_{\mathrm{mix}}(\epsilon) = \min \{t : d(t) \le \epsilon\}

    :math:`\sigma` is the second singular value of :math:`\Pi^{1/2} P \, \Pi^{-1/2}`, whose first
    singular vector is :math:`\sqrt\pi`. On a symmetric graph, whose walk is reversible,
    :math:`\sigma = \beta`, the second largest modulus of the eigenvalues. On a d-regular graph,
    where :math:`\pi_{\min} = 1/n`, the bound is the paper's theorem, with the constant that follows
    from its norms: :math:`\lVert\cdot\rVert_1 \le \sqrt{n} \lVert\cdot\rVert_2`; total variation is
    half the 1-norm. The paper's "spectral gap" is :math:`\beta d`; if it is small, the walk mixes
    fast. On a directed graph, :math:`\beta` is only the asymptotic rate, and :math:`\beta^t` is not
    a bound.

    The theorem is about this plain walk. Diffusion is a walk that restarts at its seed s with
    probability a, so it never forgets the seed:

    .. math::
        p_{t+1} = (1 - a) P^\top p_t + a e_s, \quad \pi_s = a (I - (1 - a) P^\top)^{-1} e_s, \quad
        \tfrac{1}{2} \lVert p_t - \pi_s \rVert_1 \le (1 - a)^{t+1}

    This bound holds on any graph for :math:`p_0 = e_s`.

    The walk stays at a query without keys. If there are several closed sets of tokens, the walk has
    many stationary distributions. Here :math:`\pi` weights each closed set by its size, and the
    distance does not converge to 0.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        epsilon: Total variation below which the walk counts as mixed.
        steps: Maximum number of steps.
        lazy: Whether each step stays with probability one half, so that every period is 1.
        teleport: Probability a of a restart.
        starts: Number of randomly drawn tokens from which the walk starts. If omitted, all tokens
            are starts up to 2,048 tokens, and 64 tokens beyond. Distances from a sample of starts
            are lower bounds.
        starts_seed: Seed of the drawn starts.

    Returns:
        Mixing. ``beta`` is accurate to six digits, or ``None`` if six digits are not certain. On a
        directed graph, ``beta`` may depend on the last digit of the walk, as in a de Bruijn graph,
        where it is 0. ``sigma`` is ``None`` if the walk leaves some tokens for good, mixes too
        slowly, or has a stationary probability below 2.2e-308, which has lost digits. On a directed
        graph of more than 4,096 tokens, probabilities below 1e-12 are lost in rounding: they are
        set to 0, and ``sigma`` is ``None``.

    Raises:
        TypeError, ValueError: An argument is invalid, or the graph is too large to find its
            stationary distribution, or too large to find the limits of the restart walk at this
            ``teleport``.

    Source: Diffuser, Theorem 3 and Eq. S.7; for reversible walks Diaconis and Stroock, Geometric
    bounds for eigenvalues of Markov chains (1991), Proposition 3; for others Fill, Eigenvalue
    bounds on convergence to stationarity for nonreversible Markov chains (1991). The stationary
    distribution of up to 4,096 tokens: Grassmann, Taksar and Heyman, Regenerative analysis and
    steady state distributions for Markov chains (1985).

    Example:
        >>> import networkx as nx
        >>> result = mixing(nx.complete_graph(5))
        >>> round(result.beta, 6), result.mixing_time
        (0.25, 1)
    """
    check_probability('epsilon', epsilon)
    check_probability('teleport', teleport)
    check_count('steps', steps)
    walk = walks.uniform_attention(graph, keyless='stay')
    is_reversible = walks.is_symmetric(walk)
    component = walks.strong_components(walk)
    closed = walks.closed_classes_of(walk, component)
    sources = _sources(walk.shape[0], starts, starts_seed)
    stationary = walks.stationary_distribution(walk, closed, is_reversible)
    if lazy:
        walk = sp.csr_array((walk + sp.eye_array(*walk.shape)) / 2)
    period = math.lcm(*(walks.period_of(walks.walk_within(walk, members)) for members in tqdm(
        closed, desc='periods', unit='class', delay=2, disable=None)))

    if is_reversible:
        beta = sigma = walks.second_of_reversible(walk, stationary)
    else:
        beta, sigma = walks.second_modulus(walk, component), walks.contraction(walk, stationary)
    plain_limit = np.broadcast_to(stationary[:, None], (len(stationary), len(sources)))
    distance = distances(walk, sources, plain_limit, steps)
    bound, mixing_time_bound = np.array([]), None
    if sigma is not None:
        at_start = math.sqrt(1 / stationary.min() - 1) / 2 if len(stationary) > 1 else 0.
        bound = np.minimum(at_start * sigma ** np.arange(len(distance)), 1)
        mixing_time_bound = _time_of_bound(at_start, sigma, epsilon)
    mixing_time = _first(distance <= epsilon + walks.ROUNDING)

    restart_limit = walks.restart_limits(walk, sources, teleport, stationary)
    restart_distance = distances(walk, sources, restart_limit, steps, teleport)
    return Mixing(
        num_tokens=len(stationary), starts=len(sources),
        all_starts=len(sources) == len(stationary), is_reversible=is_reversible,
        closed_classes=len(closed), period=period, beta=beta, sigma=sigma, epsilon=epsilon,
        mixing_time=mixing_time, mixing_time_bound=mixing_time_bound,
        reason=_reason(len(closed), period, steps) if mixing_time is None else None,
        teleport=teleport, restart_mixing_time=_first(restart_distance <= epsilon + walks.ROUNDING),
        restart_seed_mass=float(restart_limit[sources, np.arange(len(sources))].min()),
        restart_from_stationary=float(total_variation(restart_limit, plain_limit).max()),
        stationary=stationary, distance=distance, bound=bound, restart_distance=restart_distance,
        restart_bound=(1 - teleport) ** np.arange(1, len(restart_distance) + 1))


def _sources(n: int, starts: int | None, seed: int) -> np.ndarray:
    if starts is None:
        starts = n if n <= _ALL_STARTS_UP_TO else _SAMPLED_STARTS
    check_count('starts', starts)
    starts = min(starts, n)
    if starts * n > _MAX_LIMIT:
        raise ValueError(f"'starts' must be at most {_MAX_LIMIT // n} for a graph of {n} tokens "
                         f"(got {starts})")
    check_count('starts_seed', seed, at_least=0)
    return np.sort(np.random.default_rng(seed).choice(n, starts, replace=False))


def _time_of_bound(at_start: float, sigma: float, epsilon: float) -> int | None:
    if at_start <= epsilon + walks.ROUNDING:
        return 0
    if sigma >= 1 - walks.ROUNDING:
        return None
    steps = math.log(epsilon / at_start) / math.log(max(sigma, 1e-300))
    return max(1, math.ceil(steps - walks.ROUNDING))


def _first(is_true: np.ndarray) -> int | None:
    return int(is_true.argmax()) if is_true.any() else None


def _reason(closed_classes: int, period: int, steps: int) -> str:
    if closed_classes > 1:
        return f'{closed_classes} sets of tokens are closed: no step leaves them'
    if period > 1:
        return f'period {period}'
    return f'not mixed after {steps} steps'


def distances(walk: sp.csr_array, sources: np.ndarray, limit: np.ndarray, steps: int,
              teleport: float = 0.) -> np.ndarray:
    """Return the distance of a random walk from its limit after 0, 1, ... steps, a float64 array of
    at most ``steps + 1`` values."""
    transpose = (1 - teleport) * walk.T.tocsr()
    distance, last = np.zeros(steps + 1), 0
    blocks = [slice(first, first + _STARTS_AT_ONCE)
              for first in range(0, len(sources), _STARTS_AT_ONCE)]
    with tqdm(total=len(blocks) * steps, desc='walking', unit='step', delay=2,
              disable=None) as progress:
        for block in blocks:
            seat = sources[block], np.arange(len(sources[block]))
            mass = np.zeros((walk.shape[0], len(sources[block])))
            mass[seat] = 1
            for step in range(steps + 1):
                farthest = total_variation(mass, limit[:, block]).max()
                distance[step] = max(distance[step], farthest)
                last = max(last, step)
                if farthest <= walks.ROUNDING:
                    progress.update(steps - step)
                    break
                mass = transpose @ mass
                mass[seat] += teleport
                progress.update()
    return distance[:last + 1]


def total_variation(mass: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return the total variation distance between distributions and their limits, ``[starts]``."""
    return np.abs(mass - limit).sum(axis=0) / 2
