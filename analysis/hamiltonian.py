"""Does information pass through all tokens one after the other? Hamiltonian paths, with a witness.

    python -m analysis.hamiltonian
    python -m analysis.hamiltonian --pattern star 'RandomKeys(3)' --n 64 --directed false
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from textwrap import fill

import networkx as nx
import numpy as np
import scipy.sparse as sp
from jsonargparse import Namespace
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy.sparse.csgraph import (
    connected_components,
    maximum_bipartite_matching,
    minimum_spanning_tree,
)
from tqdm import tqdm

from analysis import command
from analysis.graphs import GraphLike, as_graph
from analysis.result import Result
from graphattn import BipartiteGraph

_EDGE, _STEP = '0.65', 'tab:red'


@dataclass(frozen=True)
class HamiltonianPath(Result):
    """Whether a graph has a Hamiltonian path, and how that is known."""

    exists: bool | None
    """``None``: the time ran out."""
    method: str
    """Which stage decided, or was the last to try."""
    reason: str | None
    """Why there is no path, or why it is not known."""
    seconds: float
    path: np.ndarray | None
    """int64 ``[n]``, the tokens in the order of the path, each step checked to be an edge."""

    def scalars(self) -> dict[str, object]:
        return {name: value for name, value in super().scalars().items() if name != 'path'}


def hamiltonian_path(
    graph: GraphLike, *, directed: bool = True, time_limit: float = 30., seed: int = 0,
) -> HamiltonianPath:
    r"""Looks for an order of the tokens in which each attends to the one before it,

    .. math::
        \gamma(i) \in \mathcal{A}_{\gamma(i + 1)} \quad \text{for all } i \in [n - 1],

    so the path runs along edges, from key :math:`\gamma(i)` to query :math:`\gamma(i + 1)`.
    Self-loops play no part. One token is a path, and so are no tokens: nothing is asked of them.

    Three stages, until one decides. Certificates that cost little: the order of the tokens
    itself, Rédei's theorem where every two tokens are joined, Ore's where degrees are high;
    against a path, two sources or sinks, no matching of n - 1 edges, a few tokens whose removal
    leaves too many components, strong components without an order, cut tokens. Then random
    rotations and extensions (Pósa; without reversal where edges have a direction). Then CP-SAT of
    OR-tools, which proves either answer. A path is checked edge by edge before it is returned.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        directed (bool): Follow edges from key to query only; otherwise either way.
        time_limit (float): Seconds after which the search stops. To write down the problem for
            CP-SAT, some 4 seconds for a million edges, comes on top.
        seed (int): Seed of the search, not negative.

    Returns:
        HamiltonianPath, whose ``exists`` is ``None`` if time ran out or OR-tools is missing.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The graph has not as many keys as queries, or a number is out of range.

    Source: Yun et al., "O(n) connections are expressive enough" (2020), Assumption 1.2, as
    SBM-Transformer, App. A, and Diffuser, Assumption 1.2, take it over; Pósa, "Hamiltonian
    circuits in random graphs" (1976).

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


def draw(graphs: command.Graphs, results: dict[str, list[HamiltonianPath]]) -> Figure:
    """The edges in the order of the tokens and in that of the path, one row for each graph."""
    figure = Figure(figsize=(8.2, 4.6 * len(graphs)), layout='constrained')
    for (before, after), label in zip(figure.subplots(len(graphs), 2, squeeze=False), graphs):
        graph, result = graphs[label][0], results[label][0]
        _draw_edges(before, graph, np.arange(graph.num_queries), result.path)
        before.set_title(fill(label, 45), fontsize='medium')
        before.set(xlabel='key j', ylabel='query i')
        if result.path is None:
            answer = 'No Hamiltonian path' if result.exists is False else 'Not known'
            reason = fill(f'{answer} ({result.method}): {result.reason}', 40)
            after.text(0.5, 0.5, reason, ha='center', va='center', transform=after.transAxes)
            after.axis('off')
            continue
        _draw_edges(after, graph, result.path, result.path)
        after.set_title(f'in the order of the path ({result.method})', fontsize='medium')
        after.set(xlabel='step of key j', ylabel='step of query i')
    figure.legend(handles=[Patch(color=_EDGE, label='edge'),
                           Patch(color=_STEP, label='step of the path')],
                  loc='outside lower center', ncols=2, frameon=False)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """The command ``python -m analysis.hamiltonian``."""
    parser = command.new_parser('hamiltonian', 'RandomKeys(6)', 64)
    parser.add_function_arguments(hamiltonian_path, skip={'graph', 'seed'})

    def run(options: Namespace) -> None:
        graphs = command.load(options)
        results = {label: [] for label in graphs}
        jobs = [(label, graph) for label, samples in graphs.items() for graph in samples]
        for label, graph in tqdm(jobs, desc='hamiltonian', unit='graph', disable=len(jobs) == 1):
            results[label].append(hamiltonian_path(
                graph, directed=options.directed, time_limit=options.time_limit,
                seed=options.seed))
        if not options.directed:
            graphs = {label: [graph | graph.transpose() for graph in samples]
                      for label, samples in graphs.items()}
        print(command.table(results))
        command.save(options.out, 'hamiltonian', results, draw(graphs, results))

    command.run_or_exit(parser, run, arguments)


# Stages ##########################################################################################

_Answer = tuple[bool | None, str, str | None, list[int] | np.ndarray | None]


def _decide(graph: BipartiteGraph, directed: bool, deadline: float, seed: int) -> _Answer:
    """``(exists, method, reason, path)``."""
    links = _links(graph, directed)
    if links.shape[0] < 2:
        return True, 'order of the tokens', None, range(links.shape[0])
    is_symmetric = not directed or (links != links.T).nnz == 0
    constructions = _SYMMETRIC_CONSTRUCTIONS if is_symmetric else _DIRECTED_CONSTRUCTIONS
    for method, construct in constructions.items():
        path = construct(links)
        if path is not None:
            return True, method, None, path
    for method, find_obstacle in _OBSTACLES.items():
        reason = find_obstacle(links)
        if reason is not None:
            return False, method, reason, None
    now = time.monotonic()
    path = _rotate_and_extend(links, is_symmetric, now + (deadline - now) / 2, seed)
    if path is not None:
        return True, 'rotation-extension', None, path
    return _solve(links, deadline, seed)


def _links(graph: BipartiteGraph, directed: bool) -> sp.csr_array:
    """Row j lists the tokens that may follow token j."""
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
        raise RuntimeError('a path was found that is none; please report the graph and the seed')


# Constructions ###################################################################################

def _in_order(links: sp.csr_array) -> range | None:
    n = links.shape[0]
    if links.diagonal(1).all():
        return range(n)
    return range(n - 1, -1, -1) if links.diagonal(-1).all() else None


def _tournament_path(links: sp.csr_array) -> list[int] | None:
    """Rédei (1934): if every two tokens are joined, each can be inserted into the path so far."""
    n = links.shape[0]
    if links.maximum(links.T).nnz < n * (n - 1):
        return None
    may_precede = links.toarray().astype(bool)
    path = [0]
    for token in range(1, n):
        later = may_precede[token, path]
        path.insert(int(later.argmax()) if later.any() else len(path), token)
    return path


def _ore_path(links: sp.csr_array) -> np.ndarray | None:
    """Ore (1960), by Palmer's proof: with one more token joined to all, a path is a cycle. Where
    neighbours on a cycle are not joined, the degrees grant a segment whose reversal mends it."""
    n = links.shape[0]
    if links.nnz < n * (n - 1) / 2:  # what degree sums of n - 1 imply
        return None
    joined = np.ones((n + 1, n + 1), dtype=bool)
    joined[:n, :n] = links.toarray() > 0
    np.fill_diagonal(joined[:n, :n], True)
    degree = np.diff(links.indptr)
    if not (joined[:n, :n] | (degree[:, None] + degree >= n - 1)).all():
        return None
    cycle = np.arange(n + 1)
    while True:
        following = np.roll(cycle, -1)
        gaps = np.flatnonzero(~joined[cycle, following])
        if gaps.size == 0:
            extra = int(np.flatnonzero(cycle == n)[0])
            return np.roll(cycle, -extra)[1:]
        cycle = np.roll(cycle, -gaps[0] - 1)  # the gap is between the last and the first
        first, last = cycle[0], cycle[-1]
        bridge = np.flatnonzero(joined[last, cycle[:-1]] & joined[first, cycle[1:]])[0]
        cycle[:bridge + 1] = cycle[:bridge + 1][::-1]


_Construction = Callable[[sp.csr_array], 'list[int] | np.ndarray | range | None']
_DIRECTED_CONSTRUCTIONS: dict[str, _Construction] = {
    'order of the tokens': _in_order, 'tournament': _tournament_path}
_SYMMETRIC_CONSTRUCTIONS: dict[str, _Construction] = {
    'order of the tokens': _in_order, "Ore's theorem": _ore_path}


# Obstacles #######################################################################################

def _ends(links: sp.csr_array) -> str | None:
    for degree, what, end in ((links.sum(axis=0), 'can follow', 'first'),
                              (links.sum(axis=1), 'can precede', 'last')):
        tokens = np.flatnonzero(degree == 0)
        if tokens.size > 1:
            return f'{tokens.size} tokens {what} no other ({_some(tokens)}); only the {end} may'
    return None


def _matching(links: sp.csr_array) -> str | None:
    n = links.shape[0]
    size = int((maximum_bipartite_matching(sp.csr_matrix(links)) >= 0).sum())
    if size >= n - 1:
        return None
    return (f'at most {size} edges leave and enter every token no more than once; a path has '
            f'{n - 1}')


def _removal(links: sp.csr_array) -> str | None:
    """Taking k tokens out of a path leaves k + 1 parts at most. For all k at once: let the tokens
    come in by rising degree; those of the first m have m components less one for each edge of the
    minimum spanning forest that is complete by then."""
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
    return (f'without {_some(taken)} the tokens fall into {components[fewest]} components; a path '
            f'would leave {removed[fewest] + 1} at most')


def _strong_components(links: sp.csr_array) -> str | None:
    """A path goes through the strong components in turn, each once: from every one there must be
    an edge to the next in topological order."""
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
            tokens = [int(np.flatnonzero(component == part)[0]) for part in (one, other)]
            return f'tokens {tokens[0]} and {tokens[1]} do not reach one another either way'
    return None


def _cut_tokens(links: sp.csr_array) -> str | None:
    """The blocks of a graph that has a path hang together like a chain."""
    blocks = list(nx.biconnected_components(nx.from_scipy_sparse_array(links.maximum(links.T))))
    membership = np.bincount(np.concatenate([list(block) for block in blocks]))
    most = int(membership.argmax())
    if membership[most] > 2:
        return f'without token {most} {membership[most]} parts remain; a path would leave 2'
    for block in blocks:
        cuts = [token for token in block if membership[token] > 1]
        if len(cuts) > 2:
            return (f'at each of the tokens {_some(np.sort(cuts))} a part hangs; a path has two '
                    f'ends')
    return None


_OBSTACLES: dict[str, Callable[[sp.csr_array], str | None]] = {
    'sources and sinks': _ends, 'matching': _matching, 'removal of tokens': _removal,
    'strong components': _strong_components, 'cut tokens': _cut_tokens}


def _some(tokens: np.ndarray) -> str:
    shown = ', '.join(map(str, tokens[:3]))
    return shown if len(tokens) <= 3 else f'{shown} and {len(tokens) - 3} more'


# Search ##########################################################################################

def _rotate_and_extend(links: sp.csr_array, is_symmetric: bool, deadline: float,
                       seed: int) -> np.ndarray | None:
    n = links.shape[0]
    rng = np.random.default_rng(seed)
    # Random cubic graphs need some n^2 / 10 and are hard for CP-SAT; with directions it is reverse
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
    """A path that grows at its ends and, when it cannot, turns into another on the same tokens."""

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
        """One more token behind the last or before the first."""
        for place, ways in ((self.length, self.successors[self.order[self.length - 1]]),
                            (0, self.predecessors[self.order[0]])):
            ways = ways[self.position[ways] < 0]
            if ways.size:
                # Warnsdorff's rule: first what will soon be hard to reach
                scarcest = np.argmin(self.free[ways] + self.rng.random(ways.size))
                self._insert(int(ways[scarcest]), place)
                return True
        return False

    def reverse_end(self) -> bool:
        """Pósa's rotation: the last token is joined to one further up; what is between turns."""
        ways = self.successors[self.order[self.length - 1]]
        if ways.size == 0:
            return False
        pivot = int(self.position[self.rng.choice(ways)])
        if pivot == 0:
            return self._cut_cycle()
        self._replace(pivot + 1, self.order[pivot + 1:self.length][::-1].copy())
        return True

    def exchange_segments(self) -> bool:
        """A rotation without reversal: the last token closes a cycle with one further up, and
        the path before enters that cycle elsewhere."""
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
        """The path is a cycle: it may end at any token, best at one that leads off it."""
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


def _solve(links: sp.csr_array, deadline: float, seed: int) -> _Answer:
    """Exactly, by CP-SAT: with one more token, joined to all both ways, a path is a circuit."""
    method = 'CP-SAT'
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None, method, "CP-SAT is missing: pip install 'graphattn[analysis]'", None
    n = links.shape[0]
    edges = links.tocoo()
    model = cp_model.CpModel()
    steps = [*zip(edges.row.tolist(), edges.col.tolist()),
             *((n, token) for token in range(n)), *((token, n) for token in range(n))]
    arcs = [(token, follower, model.new_bool_var('')) for token, follower in steps]
    model.add_circuit(arcs)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same seed takes the same course
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.)
    with _clock(solver.parameters.max_time_in_seconds):
        status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return False, method, 'CP-SAT proved that there is none', None
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, method, None, None
    follower_of = {token: follower for token, follower, is_step in arcs if solver.value(is_step)}
    path = [follower_of[n]]
    while len(path) < n:
        path.append(follower_of[path[-1]])
    return True, method, None, path


@contextmanager
def _clock(seconds: float) -> Iterator[None]:
    """A progress bar of the time, for a search that does not know how far it is."""
    is_over = threading.Event()

    def tick() -> None:
        with tqdm(total=math.ceil(seconds), desc='CP-SAT', unit='s', delay=2, leave=False) as bar:
            while not is_over.wait(1):
                bar.update()

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        is_over.set()
        ticking.join()


# Arguments and pictures ##########################################################################

def _check(graph: BipartiteGraph, directed: bool, time_limit: float, seed: int) -> None:
    if graph.num_queries != graph.num_keys:
        raise ValueError(f"'graph' must have as many keys as queries, for a path visits tokens "
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
        raise ValueError(f"'seed' must not be negative (got {seed})")


def _draw_edges(axes: Axes, graph: BipartiteGraph, order: np.ndarray,
                path: np.ndarray | None) -> None:
    n = max(graph.num_queries, 1)
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(order.size)
    points_per_cell = 260 / n
    style = {'linestyle': '', 'marker': 's', 'markeredgewidth': 0}
    axes.plot(rank[graph.key.numpy()], rank[graph.query.numpy()], color=_EDGE,
              markersize=max(points_per_cell, 0.7), **style)
    steps = rank[path] if path is not None else rank[:0]
    axes.plot(steps[:-1], steps[1:], color=_STEP,
              markersize=max(points_per_cell, 1.4), **style)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect='equal')


if __name__ == '__main__':
    main()
