"""Hamiltonian paths of an attention graph: existence, with a witness."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import (
    connected_components,
    maximum_bipartite_matching,
    minimum_spanning_tree,
)
from tqdm import tqdm

from analysis.graphs import (
    GraphLike,
    as_graph,
    check_count,
    check_positive,
    describe_symmetrization,
)
from analysis.result import Result, TokenText, token_numbers
from graphattn import BipartiteGraph

__all__ = ['HamiltonianPath', 'hamiltonian_path']
_Answer = tuple[bool | None, str, str | None, list[int] | np.ndarray | None]


@dataclass(frozen=True)
class HamiltonianPath(Result):
    """The answer to whether a graph has a Hamiltonian path, with the path, or with the reason why
    there is none."""

    ONLY = {'': ('reason',)}
    #: True if a path exists, False if there is none, ``None`` if the answer is unknown.
    exists: bool | None
    method: str  #: The stage that found the answer, or the last stage that was tried.
    reason: str | None  #: The reason why there is no path, or why the answer is unknown.
    seconds: float
    #: int64 ``[n]``, the tokens in the order of the path; each step is a verified edge.
    path: np.ndarray | None = token_numbers()
    #: How an edge without its reverse was treated: union, followed in both directions, or none.
    symmetrization: str = 'none'


def hamiltonian_path(
    graph: GraphLike, *, directed: bool = True, time_limit: float = 30., seed: int = 0,
) -> HamiltonianPath:
    r"""Find an order of the tokens in which each token attends to the one before it,

    .. math::
        \gamma(i) \in \mathcal{A}_{\gamma(i + 1)} \quad \text{for all } i \in [n - 1],

    so that the path follows edges from key :math:`\gamma(i)` to query :math:`\gamma(i + 1)`.
    Self-loops are ignored. A graph with at most one token has a path.

    Three stages run until one decides.

    1. Cheap certificates. The order of the tokens may be a path. Four can exclude a path: two
       sources or sinks, no matching of n - 1 edges, a few tokens whose removal leaves too many
       components, and strong components without an order.
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
    return HamiltonianPath(exists, method, reason, time.monotonic() - start, path,
                           describe_symmetrization(graph.to_scipy(),
                                                   'none' if directed else 'union'))


def _check(graph: BipartiteGraph, directed: bool, time_limit: float, seed: int) -> None:
    if graph.num_queries != graph.num_keys:
        raise ValueError(f"'graph' must have as many keys as queries, because a path visits tokens "
                         f"(got {graph})")
    if not isinstance(directed, bool):
        raise TypeError(f"'directed' must be a bool (got {type(directed).__name__})")
    check_positive('time_limit', time_limit)
    check_count('seed', seed, at_least=0)


def _decide(graph: BipartiteGraph, directed: bool, deadline: float, seed: int) -> _Answer:
    links = _links(graph, directed)
    n = links.shape[0]
    for order, step in ((range(n), 1), (range(n - 1, -1, -1), -1)):
        if n < 2 or links.diagonal(step).all():
            return True, 'order of the tokens', None, order
    is_symmetric = not directed or (links != links.T).nnz == 0
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


def rotate_and_extend(links: sp.csr_array, is_symmetric: bool, deadline: float,
                      seed: int) -> np.ndarray | None:
    """Search for a path by random extensions and rotations (Pósa, 1976), until moves or time run
    out."""
    n = links.shape[0]
    rng = np.random.default_rng(seed)
    # Random cubic graphs need some n^2 / 10 moves and are hard for CP-SAT. Directed graphs need few
    # moves and are easy for CP-SAT.
    moves_left = 16 * n + n**2 // 4 if is_symmetric else 64 * n
    reverse = links.T.tocsr()
    successors = np.split(links.indices, links.indptr[1:-1])
    predecessors = np.split(reverse.indices, reverse.indptr[1:-1])
    search = None
    while moves_left > 0 and time.monotonic() < deadline:
        if search is None or search.moves_since_extension > 8 * n:
            search = _GrowingPath(successors, predecessors, rng)
        if search.extend():
            if search.length == n:
                return search.order
            continue
        moves_left -= 1
        if not (search.reverse_end() if is_symmetric else search.exchange_segments()):
            search = None
    return None


class _GrowingPath:
    """A path that grows at its ends, or else is rotated, so that another token is at its end."""

    def __init__(self, successors: list[np.ndarray], predecessors: list[np.ndarray],
                 rng: np.random.Generator):
        n = len(successors)
        self.successors, self.predecessors, self.rng = successors, predecessors, rng
        self.free = np.array([len(ways) for ways in successors])  # successors off the path
        self.order = np.empty(n, dtype=np.int64)
        self.position = np.full(n, -1)
        self.length = self.moves_since_extension = 0
        self._insert(int(rng.integers(n)), 0)

    def extend(self) -> bool:
        for place, ways in ((self.length, self.successors[self.order[self.length - 1]]),
                            (0, self.predecessors[self.order[0]])):
            ways = ways[self.position[ways] < 0]
            if ways.size:
                # Warnsdorff's rule: first try the tokens with the fewest continuations
                scarcest = np.argmin(self.free[ways] + self.rng.random(ways.size))
                self._insert(int(ways[scarcest]), place)
                return True
        return False

    def reverse_end(self) -> bool:
        """Join the last token to an earlier one, and reverse the segment between them."""
        ways = self.successors[self.order[self.length - 1]]
        if ways.size == 0:
            return False
        pivot = int(self.position[self.rng.choice(ways)])
        if pivot == 0:
            return self._cut_cycle()
        self._replace(pivot + 1, self.order[pivot + 1:self.length][::-1].copy())
        return True

    def exchange_segments(self) -> bool:
        """Close a cycle from the last token to an earlier one, and enter it elsewhere."""
        ways = self.successors[self.order[self.length - 1]]
        for pivot in self.rng.permutation(self.position[ways]):
            if pivot == 0:
                return self._cut_cycle()
            entries = self.position[self.successors[self.order[pivot - 1]]]
            entries = entries[entries > pivot]
            if entries.size:
                entry = int(self.rng.choice(entries))
                self._replace(pivot, np.concatenate([self.order[entry:self.length],
                                                     self.order[pivot:entry]]))
                return True
        return False

    def _cut_cycle(self) -> bool:
        # preferably at a token that has an edge to a token outside the path
        ends = np.flatnonzero(self.free[self.order[:self.length]])
        end = int(self.rng.choice(ends) if ends.size else self.rng.integers(self.length))
        self._replace(0, np.roll(self.order[:self.length], -end - 1))
        return True

    def _insert(self, token: int, place: int) -> None:
        self.length += 1
        self.moves_since_extension = -1
        self.free[self.predecessors[token]] -= 1
        self._replace(place, np.concatenate([[token], self.order[place:self.length - 1]]))

    def _replace(self, begin: int, tokens: np.ndarray) -> None:
        self.moves_since_extension += 1
        self.order[begin:self.length] = tokens
        self.position[tokens] = np.arange(begin, self.length)


def solve(links: sp.csr_array, deadline: float, seed: int
          ) -> tuple[bool | None, str | None, list[int] | None]:
    """Search for a Hamiltonian path by OR-tools' CP-SAT solver."""
    if time.monotonic() >= deadline:
        return None, None, None
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None, "CP-SAT is missing: pip install 'graphattn[analysis]'", None
    # A path becomes a circuit by an additional token that is joined to all others.
    n = links.shape[0]
    edges = links.tocoo()
    model = cp_model.CpModel()
    steps = [*zip(edges.row.tolist(), edges.col.tolist()),
             *((n, token) for token in range(n)), *((token, n) for token in range(n))]
    arcs = []
    for token, follower in steps:
        if time.monotonic() >= deadline:  # building the model takes seconds for a million edges
            return None, None, None
        arcs.append((token, follower, model.new_bool_var('')))
    model.add_circuit(arcs)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # deterministic for a given seed
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.)
    with _clock(solver.parameters.max_time_in_seconds):
        status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return False, 'CP-SAT proved that there is no path', None
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, None, None
    follower_of = {token: follower for token, follower, is_step in arcs if solver.value(is_step)}
    path = [follower_of[n]]
    while len(path) < n:
        path.append(follower_of[path[-1]])
    return True, None, path


@contextmanager
def _clock(seconds: float) -> Iterator[None]:
    """Show a progress bar of the elapsed time, because the solver reports no progress."""
    is_over = threading.Event()

    def tick() -> None:
        with tqdm(total=math.ceil(seconds), desc='CP-SAT', unit='s', delay=2, leave=False,
                  disable=None) as bar:
            while not is_over.wait(1):
                bar.update()

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        is_over.set()
        ticking.join()


def _ends(links: sp.csr_array) -> str | None:
    for degree, what, end in ((links.sum(axis=0), 'can follow', 'first'),
                              (links.sum(axis=1), 'can precede', 'last')):
        tokens = np.flatnonzero(degree == 0)
        if tokens.size > 1:
            return TokenText(f'{tokens.size} tokens {what} no other ({{}}); only the {end} may',
                             tokens)
    return None


def _matching(links: sp.csr_array) -> str | None:
    n = links.shape[0]
    size = int((maximum_bipartite_matching(sp.csr_matrix(links)) >= 0).sum())
    if size >= n - 1:
        return None
    return (f'at most {size} edges can be chosen such that each token begins one at most and '
            f'ends one at most; a path needs {n - 1}')


def _removal(links: sp.csr_array) -> str | None:
    """Find k tokens whose removal leaves more than k + 1 parts, so that no Hamiltonian path
    exists."""
    # The tokens of highest degree are removed, for all k at once: tokens are added in order of
    # degree, and the components of the first m tokens are m minus the edges of the minimum spanning
    # forest among them.
    n = links.shape[0]
    either_way = links.maximum(links.T).tocoo()
    degree = np.bincount(either_way.row, minlength=n)
    arrival = np.empty(n, dtype=np.int64)
    arrival[np.argsort(degree, kind='stable')] = np.arange(1, n + 1)
    complete = np.maximum(arrival[either_way.row], arrival[either_way.col])
    forest = minimum_spanning_tree(
        sp.csr_matrix((complete, (either_way.row, either_way.col)), shape=(n, n)))
    joined = np.bincount(forest.data.astype(np.int64), minlength=n + 1).cumsum()[1:]
    present = np.arange(1, n + 1)
    components, removed = present - joined, n - present
    too_many = np.flatnonzero(components > removed + 1)
    if too_many.size == 0:
        return None
    fewest = too_many[-1]
    if removed[fewest] == 0:
        return f'the tokens fall into {components[fewest]} components'
    taken = np.flatnonzero(arrival > present[fewest])
    return TokenText(f'without {{}} the tokens fall into {components[fewest]} components; a path '
                     f'would leave {removed[fewest] + 1} at most', taken)


def _strong_components(links: sp.csr_array) -> str | None:
    """Find two strongly connected components that no path can visit one after the other."""
    import networkx as nx

    count, component = connected_components(links, connection='strong')
    edges = links.tocoo()
    leaving = component[edges.row] != component[edges.col]
    condensed = nx.DiGraph()
    condensed.add_nodes_from(range(count))
    condensed.add_edges_from(zip(component[edges.row[leaving]].tolist(),
                                 component[edges.col[leaving]].tolist()))
    order = list(nx.topological_sort(condensed))
    for one, other in zip(order, order[1:]):
        if not condensed.has_edge(one, other):
            tokens = [np.flatnonzero(component == part)[:1] for part in (one, other)]
            return TokenText('tokens {} and {} do not reach each other in either direction',
                             *tokens)
    return None


OBSTACLES: dict[str, Callable[[sp.csr_array], str | None]] = {
    'sources and sinks': _ends, 'matching': _matching, 'removal of tokens': _removal,
    'strong components': _strong_components}
