"""Do attention patterns, applied in turn, satisfy what proofs of universal approximation ask?

    python -m analysis.universality
    python -m analysis.universality --pattern 'SlidingWindow(2)' 'Strided(8)' --n 64
    python -m analysis.universality --pattern diffuser --n 256 --hops 5

Lemmas 1 and 2 of SBM-Transformer, App. A, are here too. What holds of masks says little of a model
that *samples* them: its Theorem 1 bounds the distance to the expected output E[g(X)], and the
expected output is not the output under the expected mask, for softmax is not linear in the mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from numbers import Integral
from textwrap import fill

import numpy as np
import torch
from jsonargparse import Namespace
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from tqdm import tqdm

from analysis import command
from analysis.graphs import GraphLike, as_graph, graph_of_pattern
from analysis.hamiltonian import hamiltonian_path
from analysis.result import Result
from graphattn import BipartiteGraph
from graphattn.patterns import Pattern, SlidingWindow

_WORDS_PER_CHUNK = 2**23  # of 64 bits, gathered at a time
_CELLS = 512  # of a picture, at most: an edge darkens its cell


@dataclass(frozen=True)
class Universality(Result):
    """Which conditions of Assumption 1 (Yun et al.) hold for patterns applied in turn."""

    assumption_1: bool | None
    """All three; ``None`` if the Hamiltonian path is not known and the others hold."""
    self_loops: bool
    """Condition 1."""
    hamiltonian_path: bool | None
    """Condition 2."""
    layers: int | None
    """The s of condition 3; ``None`` if not all tokens reach all."""
    reasons: tuple[str, ...]
    """What fails or is not known, condition by condition."""
    patterns: int
    """How many there are, p."""
    rectangles: int
    """How many of them Eq. 5 of SBM-Transformer can give probability 1, see :func:`is_rectangle`"""
    reach: np.ndarray
    """float64 ``[layers run]``, the share of (query, key) pairs reached after each layer."""


@dataclass(frozen=True)
class DiffusionUniversality(Result):
    """What Diffuser's Theorem 1 assumes of its pattern, and what its proof adds."""

    assumption_1: bool | None
    """Self-loops, connected, a Hamiltonian path."""
    self_loops: bool
    connected: bool
    """With direction forgotten."""
    hamiltonian_path: bool | None
    global_first_token: bool | None
    """Whether a path begins at a token that all others attend to, and that attends to them."""
    enough_hops: bool
    """More hops than tokens."""
    reasons: tuple[str, ...]
    """What fails or is not known."""


def universality(
    graphs: Sequence[GraphLike], *, time_limit: float = 30., seed: int = 0,
    max_layers: int = 10_000,
) -> Universality:
    r"""Conditions 1 to 3 of Assumption 1 for p patterns that layers apply in turn.

    1. Every token attends to itself in every pattern: :math:`i \in \mathcal{A}_i^l`.
    2. The union of the patterns has a Hamiltonian path:
       :math:`\gamma(i) \in \bigcup_l \mathcal{A}_{\gamma(i + 1)}^l`.
    3. After s layers every token has information from all:

       .. math::
           s = \min\{t \mid \mathcal{S}_i^t = [n] \text{ for all } i\}, \quad
           \mathcal{S}_i^1 = \mathcal{A}_i^1, \quad \mathcal{S}_i^t =
           \bigcup_{j \in \mathcal{A}_i^{(t - 1) \bmod p + 1}} \mathcal{S}_j^{t - 1}.

       SBM-Transformer prints :math:`\mathcal{A}_k^1` for :math:`\mathcal{A}_i^1`.

    They are sufficient, together with enough width and layers, for masks that are fixed.

    Args:
        graphs: One graph for each of the p patterns, all on the same n tokens, each as
            :func:`analysis.graphs.as_graph` takes it.
        time_limit (float): Seconds for the Hamiltonian path.
        seed (int): Seed of that search.
        max_layers (int): After how many layers to give up on condition 3. Reach that repeats
            itself is noticed earlier.

    Returns:
        Universality.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There are no graphs, they differ in size or have not as many keys as queries,
            or a number is out of range.

    Source: Yun et al., "O(n) connections are expressive enough" (2020), Assumption 1;
    SBM-Transformer, App. A.

    Example:
        >>> from analysis.universality import lemma_2, universality
        >>> patterns = lemma_2(clusters=4)
        >>> result = universality([pattern.build(16) for pattern in patterns])
        >>> result.assumption_1, result.layers, result.rectangles
        (True, 5, 2)
    """
    graphs = _same_tokens(graphs)
    _check_count('max_layers', max_layers)
    union = graphs[0]
    for graph in graphs[1:]:
        union = union | graph
    path = hamiltonian_path(union, time_limit=time_limit, seed=seed)
    layers, reach, unreached = _layers_to_reach_all(graphs, max_layers)
    without_loop = [number for number, graph in enumerate(graphs, start=1)
                    if not _has_self_loops(graph)]
    reasons = [f'condition 1: pattern {", ".join(map(str, without_loop))} lacks self-loops'
               if without_loop else None,
               f'condition 2: {path.reason}' if path.reason else None,
               f'condition 3: {unreached}' if unreached else None]
    return Universality(
        assumption_1=_all(not without_loop, path.exists, layers is not None),
        self_loops=not without_loop, hamiltonian_path=path.exists, layers=layers,
        reasons=tuple(filter(None, reasons)), patterns=len(graphs),
        rectangles=sum(map(is_rectangle, graphs)), reach=reach)


def diffusion_universality(
    graph: GraphLike, *, hops: int = 5, time_limit: float = 30., seed: int = 0,
) -> DiffusionUniversality:
    r"""What Diffuser's Theorem 1 asks of one pattern, which diffusion applies K times a layer.

    Its Assumption 1 has two parts: all tokens attend to themselves; the graph is connected and
    has a Hamiltonian path :math:`\gamma`. The proof of Lemma 8 adds two: :math:`\gamma(1)` is a
    global token, and K exceeds the number of tokens, so that one layer carries information along
    the whole path. Diffuser's own K = 5 is therefore outside of what is proved, at any length of
    interest.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        hops (int): Number of diffusion steps, K.
        time_limit (float): Seconds for each search for a Hamiltonian path.
        seed (int): Seed of that search.

    Returns:
        DiffusionUniversality.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The graph has not as many keys as queries, or a number is out of range.

    Source: Feng et al., "Diffuser" (2023), Assumption 1, Theorem 1, and Lemma 8 in App. C.
    """
    graph, = _same_tokens([graph])
    _check_count('hops', hops)
    n = graph.num_queries
    search = {'time_limit': time_limit, 'seed': seed}
    path = hamiltonian_path(graph, **search)
    components = connected_components(graph.to_scipy(), directed=False)[0] if n else 0
    has_loops, is_connected = _has_self_loops(graph), components <= 1
    begins_globally = path.exists and _begins_at_global_token(graph, search)
    reasons = [None if has_loops else 'it lacks self-loops',
               None if is_connected else f'it falls into {components} components',
               path.reason,
               None if begins_globally else 'no path is known to begin at a global token',
               None if hops > n else f'the proof needs more hops than the {n} tokens']
    return DiffusionUniversality(
        assumption_1=_all(has_loops, is_connected, path.exists), self_loops=has_loops,
        connected=is_connected, hamiltonian_path=path.exists,
        global_first_token=begins_globally, enough_hops=hops > n,
        reasons=tuple(filter(None, reasons)))


# Lemma 1: Hamiltonian cycles of random graphs ####################################################

def expected_hamiltonian_cycles(n: int, p: float) -> float:
    r"""The expected number of Hamiltonian cycles of a directed random graph,

    .. math::
        (n - 1)! \; p^n.

    That it is at least 1, all that Lemma 1 shows, does not give a cycle or a path: at the lemma's
    density (:func:`lemma_1_density`) a few graphs have very many cycles and nearly all have none,
    see :func:`hamiltonian_path_bound`.

    Args:
        n (int): Number of tokens, at least 2.
        p (float): Probability of each of the n (n - 1) edges.

    Returns:
        float, ``inf`` beyond the range of a float.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range.

    Source: SBM-Transformer, App. A, Lemma 1.

    Example:
        >>> from analysis.universality import expected_hamiltonian_cycles, lemma_1_density
        >>> round(expected_hamiltonian_cycles(64, lemma_1_density(64)), 1)
        20.1
    """
    _check_random_graph(n, p)
    if p == 0:
        return 0.
    log_count = math.lgamma(n) + n * math.log(p)
    return math.exp(log_count) if log_count < 709 else math.inf


def lemma_1_density(n: int) -> float:
    r"""The density that Lemma 1 takes for enough, :math:`\frac{e}{n} n^{1/n}`.

    A path exists with high probability only from :math:`p = (\ln n + \omega(1)) / n` on, which is
    :math:`n \ln n` edges and not O(n).

    Source: SBM-Transformer, App. A, Lemma 1, whose last line misprints :math:`n^{1/n}`; Frieze,
    "An algorithm for finding Hamilton cycles in random directed graphs" (1988).
    """
    _check_random_graph(n, 0.)
    return min(1., math.e / n * n**(1 / n))


def hamiltonian_path_bound(n: int, p: float) -> float:
    r"""An upper bound on the probability that a directed random graph has a Hamiltonian path.

    All tokens but the first attend to another one, which with :math:`q = 1 - (1 - p)^{n - 1}` has
    the probability

    .. math::
        q^n + n \, q^{n - 1} (1 - q).

    Args:
        n (int): Number of tokens, at least 2.
        p (float): Probability of each of the n (n - 1) edges.

    Returns:
        float.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range.

    Example:
        >>> from analysis.universality import hamiltonian_path_bound, lemma_1_density
        >>> f'{hamiltonian_path_bound(1024, lemma_1_density(1024)):.0e}'
        '1e-28'
    """
    _check_random_graph(n, p)
    attends = 1 - (1 - p)**(n - 1)
    return attends**n + n * attends**(n - 1) * (1 - attends)


# Lemma 2: three patterns that satisfy Assumption 1 ###############################################

@dataclass(frozen=True, repr=False)
class Clusters(Pattern):
    r"""A query attends to the keys of its cluster, one of ``count`` intervals:
    :math:`\lfloor ik/n \rfloor = \lfloor jk/n \rfloor` with positions from 0.

    With positions from 1, as printed, :math:`\lfloor ik/n \rfloor` makes k + 1 clusters.

    Eq. 5 of SBM-Transformer cannot express it, see :func:`is_rectangle`: with one-hot memberships
    the probability inside cluster u is :math:`\hat S_{uu}`, on average at most 1/k.

    Args:
        count (int): Number of clusters, k.

    Raises:
        TypeError: ``count`` is not an int.
        ValueError: ``count`` is below 1.

    Source: SBM-Transformer, App. A, Lemma 2, :math:`\mathcal{A}^1`.
    """

    count: int

    def __post_init__(self):
        self._require_int('count', at_least=1)

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        cluster_of_query = torch.arange(num_queries) * self.count // num_queries
        cluster_of_key = torch.arange(num_keys) * self.count // num_keys
        query, key = (cluster_of_query[:, None] == cluster_of_key).nonzero().t()
        return torch.stack([key, query])


@dataclass(frozen=True, repr=False)
class Relays(Pattern):
    """Every query attends to the last ``count`` keys; the other way round, the last ``count``
    queries attend to every key.

    Both are rectangles, which Eq. 5 of SBM-Transformer can express.

    Args:
        count (int): Number of relays.
        listen (bool): The relays attend, instead of being attended to.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``count`` is negative.

    Source: SBM-Transformer, App. A, Lemma 2, :math:`\\mathcal{A}^2` and :math:`\\mathcal{A}^3`
    without their self-loops.
    """

    count: int
    listen: bool = False

    def __post_init__(self):
        self._require_int('count', at_least=0)
        self._require_bool('listen')

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        query, key = torch.arange(num_queries), torch.arange(num_keys)
        if self.listen:
            query = query[max(num_queries - self.count, 0):]
        else:
            key = key[max(num_keys - self.count, 0):]
        return torch.cartesian_prod(key, query).t()


def lemma_2(clusters: int) -> tuple[Pattern, Pattern, Pattern]:
    r"""The patterns :math:`\mathcal{A}^1, \mathcal{A}^2, \mathcal{A}^3` of Lemma 2.

    They satisfy Assumption 1, with three corrections to the paper:

    - In this order s = 5 (4 for two clusters) and not 3: in layer 2 all attend to relays that know
      but their own cluster, in layer 3 the relays learn the rest, which layers 4 and 5 pass on. The
      order
      :math:`\mathcal{A}^1, \mathcal{A}^3, \mathcal{A}^2` gives 3.
    - They have :math:`n^2/k + 2kn + 2(n - k)` edges where k divides n, more than
      :math:`2 \sqrt{2} \, n^{3/2}` for every k, and so not O(n).
    - The path of the proof comes through relays that it visits again in their own cluster.
      Another path exists.

    Args:
        clusters (int): Number of clusters and of relays, k.

    Source: SBM-Transformer, App. A, Lemma 2 and Figure 6.
    """
    itself = SlidingWindow(0)
    return Clusters(clusters), itself | Relays(clusters), itself | Relays(clusters, listen=True)


def is_rectangle(graph: GraphLike) -> bool:
    r"""Whether a graph is :math:`I \times J`, up to self-loops.

    Only then can Eq. 5 of SBM-Transformer give all of its edges probability 1. In

    .. math::
        p_{ij} = \sum_{uv} \hat S_{uv} \, \hat Q_{iu} \, \hat K_{jv}

    the entries of :math:`\hat S` are positive and sum to 1 and memberships are at most 1, so
    :math:`p_{ij} = 1` asks for :math:`\hat Q_i = 1` and :math:`\hat K_j = 1` in all entries, and
    then holds for all such i and j. A mixing that is normalised otherwise can do more.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it.

    Source: SBM-Transformer, Eq. 5 to 8.

    Example:
        >>> from analysis.universality import is_rectangle, lemma_2
        >>> [is_rectangle(pattern.build(16)) for pattern in lemma_2(4)]
        [False, True, True]
    """
    graph = as_graph(graph)
    is_edge = graph.key != graph.query
    query, key = graph.query[is_edge].unique(), graph.key[is_edge].unique()
    on_diagonal = int(torch.isin(query, key).sum())
    return int(is_edge.sum()) == query.numel() * key.numel() - on_diagonal


# The command #####################################################################################

def draw(graphs: dict[str, BipartiteGraph], result: Universality) -> Figure:
    """The patterns in turn, and the share of pairs that are reached after each layer."""
    columns = min(len(graphs) + 1, 4)
    rows = math.ceil((len(graphs) + 1) / columns)
    figure = Figure(figsize=(2.3 * columns, 2.7 * rows), layout='constrained')
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (label, graph) in zip(panels, graphs.items()):
        _draw_edges(axes, graph)
        axes.set_title(fill(label, 28), fontsize='small')
    _draw_reach(panels[len(graphs)], result)
    for axes in panels[len(graphs) + 1:]:
        axes.axis('off')
    return figure


def main(arguments: list[str] | None = None) -> None:
    """The command ``python -m analysis.universality``."""
    parser = command.new_parser('universality', '', 16)
    parser.set_defaults(pattern=[])
    parser.add_argument('--clusters', type=int, default=4,
                        help='without --pattern: k of the three patterns of Lemma 2')
    parser.add_argument('--hops', type=int | None,
                        help="also ask of each pattern what Diffuser's theorem assumes, at this K")
    parser.add_argument('--time_limit', type=float, default=30.,
                        help='seconds for each search for a Hamiltonian path')
    parser.add_argument('--max_layers', type=int, default=10_000,
                        help='after how many layers to give up on condition 3')

    def run(options: Namespace) -> None:
        search = {'time_limit': options.time_limit, 'seed': options.seed}
        samples = _patterns_in_turn(options)
        results = {'in turn': [
            universality(list(graphs.values()), max_layers=options.max_layers, **search)
            for graphs in tqdm(samples, desc='universality', disable=len(samples) == 1)]}
        if options.hops is not None:
            results |= {f'diffusion, {label}': [
                diffusion_universality(graphs[label], hops=options.hops, **search)
                for graphs in samples] for label in samples[0]}
        print(command.table(results))
        for label, of_samples in results.items():
            for reason in dict.fromkeys(reason for result in of_samples
                                        for reason in result.reasons):
                print(f'{label}: {reason}')
        figure = draw(samples[0], results['in turn'][0])
        command.save(options.out, 'universality', results, figure)

    command.run_or_exit(parser, run, arguments)


def _patterns_in_turn(options: Namespace) -> list[dict[str, BipartiteGraph]]:
    """For each sample of a trained model, or once, the graphs that layers apply one by one."""
    if options.checkpoint is not None:
        heads = command.load(options)
        return [_layers({label: samples[index] for label, samples in heads.items()})
                for index in range(options.samples)]
    if options.graph is not None:
        return [{label: graph for label, (graph,) in command.load(options).items()}]
    if options.pattern:
        return [{f'layer {layer}, {expression}':
                 graph_of_pattern(expression, options.n, options.seed + layer - 1)
                 for layer, expression in enumerate(options.pattern, start=1)}]
    return [{f'layer {layer}, {pattern!r}': pattern.build(options.n)
             for layer, pattern in enumerate(lemma_2(options.clusters), start=1)}]


def _layers(heads: dict[str, BipartiteGraph]) -> dict[str, BipartiteGraph]:
    """The heads of a layer work side by side: information passes along the edges of any."""
    layers = {}
    for label, graph in heads.items():
        layer = label.partition(',')[0]
        layers[layer] = layers[layer] | graph if layer in layers else graph
    return layers


def _draw_edges(axes: Axes, graph: BipartiteGraph) -> None:
    n = max(graph.num_queries, 1)
    cells = min(n, _CELLS)
    has_edge = np.histogram2d(graph.query.numpy(), graph.key.numpy(), bins=cells,
                              range=[[0, n], [0, n]])[0] > 0
    axes.imshow(has_edge, cmap='Greys', interpolation='none', vmin=0, vmax=1.4,
                extent=(-0.5, n - 0.5, n - 0.5, -0.5))
    axes.set(xlabel='key j', ylabel='query i')


def _draw_reach(axes: Axes, result: Universality) -> None:
    layer = np.arange(1, result.reach.size + 1)
    axes.plot(layer, 100 * result.reach, marker='o' if layer.size < 40 else None)
    axes.axhline(100, color='0.7', linewidth=1, zorder=0)
    title = f's = {result.layers}' if result.layers else 'never all'
    axes.set_title(f'pairs reached: {title}', fontsize='small')
    axes.set(xlabel='layers', ylabel='share of pairs [%]', ylim=(0, 105))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.1)
    axes.set_box_aspect(1)


# Conditions ######################################################################################

def _layers_to_reach_all(graphs: list[BipartiteGraph], max_layers: int
                         ) -> tuple[int | None, np.ndarray, str | None]:
    """``(s, share of pairs reached after each layer, why there is no s)``."""
    n = graphs[0].num_queries
    if n == 0:
        return 1, np.ones(1), None
    reached = np.packbits(np.eye(n, dtype=bool), axis=1)
    reached = np.pad(reached, [(0, 0), (0, -reached.shape[1] % 8)]).view(np.uint64)
    shares, states = [], set()
    for layer in tqdm(range(max_layers), desc='reach', unit='layer', delay=2, leave=False):
        reached = _spread(graphs[layer % len(graphs)], reached)
        shares.append(float(np.bitwise_count(reached).sum(dtype=np.int64)) / n**2)
        if shares[-1] == 1:
            return layer + 1, np.array(shares), None
        state = layer % len(graphs), blake2b(reached.tobytes(), digest_size=16).digest()
        if state in states:
            return None, np.array(shares), (f'reach repeats itself from layer {layer + 1} on, at '
                                            f'{shares[-1]:.3%} of the pairs')
        states.add(state)
    return None, np.array(shares), f'not all pairs are reached after {max_layers} layers'


def _spread(graph: BipartiteGraph, reached: np.ndarray) -> np.ndarray:
    """One layer: the union, over the keys of each query, of what they have reached, as bits."""
    indptr, key = graph.indptr.cpu().numpy(), graph.key.cpu().numpy()
    after = np.zeros_like(reached)
    edges_per_chunk = max(1, _WORDS_PER_CHUNK // max(1, reached.shape[1]))
    first = 0
    while first < graph.num_queries:
        last = int(np.searchsorted(indptr, indptr[first] + edges_per_chunk, side='right')) - 1
        last = max(last, first + 1)
        query = first + np.flatnonzero(np.diff(indptr[first:last + 1]))
        if query.size:  # reduceat has no empty group
            gathered = reached[key[indptr[first]:indptr[last]]]
            after[query] = np.bitwise_or.reduceat(gathered, indptr[query] - indptr[first])
        first = last
    return after


def _begins_at_global_token(graph: BipartiteGraph, search: dict) -> bool | None:
    """Whether some Hamiltonian path begins at a global token: where no edge enters, it must."""
    n = graph.num_queries
    other = graph.without_self_loops()
    is_global = (other.in_degree() == n - 1) & (other.out_degree() == n - 1)
    answers = []
    for token in is_global.nonzero().flatten().tolist():
        kept = other.query != token
        without_entry = BipartiteGraph(torch.stack([other.key[kept], other.query[kept]]), n)
        answers.append(hamiltonian_path(without_entry, **search).exists)
        if answers[-1]:
            return True
    return None if None in answers else False


def _has_self_loops(graph: BipartiteGraph) -> bool:
    return int((graph.key == graph.query).sum()) == graph.num_queries


def _all(*conditions: bool | None) -> bool | None:
    if any(condition is False for condition in conditions):
        return False
    return None if None in conditions else True


# Arguments #######################################################################################

def _same_tokens(graphs: Sequence[GraphLike]) -> list[BipartiteGraph]:
    if not isinstance(graphs, list | tuple):
        raise TypeError(f"'graphs' must be a list, one graph for each pattern (got "
                        f"{type(graphs).__name__})")
    graphs = [_one_block(as_graph(graph)) for graph in graphs]
    if not graphs:
        raise ValueError("'graphs' is empty; give one graph for each pattern")
    for graph in graphs:
        if graph.num_queries != graph.num_keys or graph.num_keys != graphs[0].num_keys:
            raise ValueError(f"'graphs' must all have the same number of keys and queries (got "
                             f"{graph} beside {graphs[0].num_queries} tokens)")
    return graphs


def _one_block(graph: BipartiteGraph) -> BipartiteGraph:
    edge_index = torch.stack([graph.key, graph.query]).cpu()
    return BipartiteGraph(edge_index, graph.num_queries, graph.num_keys, validate=False)


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"'{name}' must be an int (got {type(count).__name__})")
    if count < 1:
        raise ValueError(f"'{name}' must be at least 1 (got {count})")


def _check_random_graph(n: int, p: float) -> None:
    _check_count('n', n)
    if n < 2:
        raise ValueError(f"'n' must be at least 2 (got {n})")
    if not 0 <= p <= 1:
        raise ValueError(f"'p' must be a probability (got {p})")


if __name__ == '__main__':
    main()
