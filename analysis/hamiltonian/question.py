"""The question of Hamiltonian paths, and its result, in three stages."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import scipy.sparse as sp

from analysis.graphs import GraphLike, as_graph
from analysis.hamiltonian.circuit import solve
from analysis.hamiltonian.constructions import DIRECTED_CONSTRUCTIONS, SYMMETRIC_CONSTRUCTIONS
from analysis.hamiltonian.obstacles import OBSTACLES
from analysis.hamiltonian.rotation import rotate_and_extend
from analysis.result import Result, token_numbers
from graphattn import BipartiteGraph


@dataclass(frozen=True)
class HamiltonianPath(Result):
    """The answer to whether a graph has a Hamiltonian path, with the path, or with the reason why
    there is none."""

    exists: bool | None
    """True if a path exists, False if there is none, ``None`` if the answer is unknown."""
    method: str
    """The stage that found the answer, or the last stage that was tried."""
    reason: str | None
    """The reason why there is no path, or why the answer is unknown."""
    seconds: float
    path: np.ndarray | None = token_numbers()
    """int64 ``[n]``, the tokens in the order of the path; each step is a verified edge."""


def hamiltonian_path(
    graph: GraphLike, *, directed: bool = True, time_limit: float = 30., seed: int = 0,
) -> HamiltonianPath:
    r"""Find an order of the tokens in which each token attends to the one before it,

    .. math::
        \gamma(i) \in \mathcal{A}_{\gamma(i + 1)} \quad \text{for all } i \in [n - 1],

    so that the path follows edges from key :math:`\gamma(i)` to query :math:`\gamma(i + 1)`.
    Self-loops are ignored. A graph with at most one token has a path.

    Three stages run until one decides.

    1. Cheap certificates. Three can prove a path: the token order itself, Rédei's theorem if every
       two tokens are joined, and Ore's theorem if degrees are high. Five can exclude a path: two
       sources or sinks, no matching of n - 1 edges, a few tokens whose removal leaves too many
       components, strong components without an order, and cut tokens.
    2. Random rotations and extensions of a path (Pósa), without reversal if edges are directed.
    3. OR-tools' CP-SAT, which can prove either answer.

    A path is verified edge by edge before it is returned.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        directed (bool): Whether to follow edges from key to query only. If false, edges are
            followed in both directions.
        time_limit (float): Seconds after which the search stops. No certificate against a path
            starts in the second half of this time, which is reserved for the search. CP-SAT starts
            only if time is left. A step that has started is not interrupted: with a million edges,
            reading the graph, one certificate, and the last steps of CP-SAT may each exceed the
            limit by some seconds.
        seed (int): Non-negative seed of the search.

    Returns:
        HamiltonianPath; ``exists`` is ``None`` if time ran out or OR-tools is missing.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The numbers of keys and queries differ, or an argument is out of range.

    Source: Yun et al., "O(n) connections are expressive enough" (2020), Assumption 1.2, adopted by
    SBM-Transformer, App. A, and Diffuser, Assumption 1.2; Pósa, "Hamiltonian circuits in random
    graphs" (1976).

    Example:
        >>> import networkx as nx
        >>> from analysis.hamiltonian import hamiltonian_path
        >>> hamiltonian_path(nx.path_graph(4)).path.tolist()
        [0, 1, 2, 3]
        >>> result = hamiltonian_path(nx.star_graph(4))
        >>> result.exists, result.method
        (False, 'matching')
    """
    graph = as_graph(graph)
    _check(graph, directed, time_limit, seed)
    start = time.monotonic()
    exists, method, reason, path = _decide(graph, directed, start + time_limit, seed)
    if exists:
        path = np.asarray(path, dtype=np.int64)
        _verify(path, graph, directed)
    if exists is None and reason is None:
        reason = f'no answer within {time_limit:g} s'
    return HamiltonianPath(exists, method, reason, time.monotonic() - start, path)


def _check(graph: BipartiteGraph, directed: bool, time_limit: float, seed: int) -> None:
    if graph.num_queries != graph.num_keys:
        raise ValueError(f"'graph' must have as many keys as queries, because a path visits tokens "
                         f"(got {graph})")
    if not isinstance(directed, bool):
        raise TypeError(f"'directed' must be a bool (got {type(directed).__name__})")
    if not isinstance(time_limit, Real) or isinstance(time_limit, bool):
        raise TypeError(f"'time_limit' must be a number of seconds (got "
                        f"{type(time_limit).__name__})")
    if not 0 < time_limit < math.inf:
        raise ValueError(f"'time_limit' must be a positive, finite number of seconds (got "
                         f"{time_limit})")
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise TypeError(f"'seed' must be an int (got {type(seed).__name__})")
    if seed < 0:
        raise ValueError(f"'seed' must be at least 0 (got {seed})")


_Answer = tuple[bool | None, str, str | None, list[int] | np.ndarray | None]


def _decide(graph: BipartiteGraph, directed: bool, deadline: float, seed: int) -> _Answer:
    """Decide whether a Hamiltonian path exists.

    Args:
        graph: A graph with as many keys as queries.
        directed: Whether to follow edges from key to query only.
        deadline: Time of :func:`time.monotonic` at which the search ends.
        seed: Seed of the search.

    Returns:
        Whether a path exists, the stage that decided, the reason if there is none, and the path.
        Unknown parts are ``None``.
    """
    links = _links(graph, directed)
    if links.shape[0] < 2:
        return True, 'order of the tokens', None, range(links.shape[0])
    is_symmetric = not directed or (links != links.T).nnz == 0
    constructions = SYMMETRIC_CONSTRUCTIONS if is_symmetric else DIRECTED_CONSTRUCTIONS
    for method, construct in constructions.items():
        path = construct(links)
        if path is not None:
            return True, method, None, path
    now = time.monotonic()
    half = now + (deadline - now) / 2
    for method, find_obstacle in OBSTACLES.items():
        if time.monotonic() > half:
            break
        reason = find_obstacle(links)
        if reason is not None:
            return False, method, reason, None
    now = time.monotonic()
    path = rotate_and_extend(links, is_symmetric, now + (deadline - now) / 2, seed)
    if path is not None:
        return True, 'rotation-extension', None, path
    exists, reason, path = solve(links, deadline, seed)
    return exists, 'CP-SAT', reason, path


def _links(graph: BipartiteGraph, directed: bool) -> sp.csr_array:
    """Return a sparse array ``[n, n]`` whose row j marks the tokens that may follow token j in a
    Hamiltonian path."""
    key, query = graph.key.cpu().numpy(), graph.query.cpu().numpy()
    if not directed:
        key, query = np.concatenate([key, query]), np.concatenate([query, key])
    other = key != query
    links = sp.csr_array((np.ones(int(other.sum())), (key[other], query[other])),
                         shape=(graph.num_keys, graph.num_queries))
    links.sum_duplicates()
    links.data[:] = 1
    return links


def _verify(path: np.ndarray, graph: BipartiteGraph, directed: bool) -> None:
    n = graph.num_queries
    edge = graph.key.cpu().numpy() * n + graph.query.cpu().numpy()
    step = path[:-1] * n + path[1:]
    is_edge = np.isin(step, edge)
    if not directed:
        is_edge |= np.isin(path[1:] * n + path[:-1], edge)
    if not np.array_equal(np.sort(path), np.arange(n)) or not is_edge.all():
        raise RuntimeError('the path that was found is invalid; please report the graph and the '
                           'seed')
