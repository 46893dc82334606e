"""Conditions of universal approximation for attention patterns that layers apply in turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from tqdm import tqdm

from analysis.graphs import GraphLike, as_graph, check_count
from analysis.hamiltonian import hamiltonian_path
from analysis.result import Result
from analysis.walk import bits_of_neighbours
from graphattn import BipartiteGraph
from graphattn.patterns import Pattern, SlidingWindow

__all__ = ['DiffusionUniversality', 'Universality', 'diffusion_universality', 'lemma_2',
           'universality']


@dataclass(frozen=True)
class Universality(Result):
    """The answer to whether patterns that the layers of a model apply in turn satisfy Assumption 1
    of Yun et al., condition by condition."""

    #: True if all three conditions hold (sufficient, not necessary); ``None`` if the Hamiltonian
    #: path is unknown and the others hold.
    assumption_1: bool | None
    self_loops: bool  #: Condition 1.
    hamiltonian_path: bool | None  #: Condition 2.
    layers: int | None  #: The s of condition 3; ``None`` if some token does not reach all others.
    #: True if all patterns are full attention without the diagonal, on more than two tokens.
    sparsebert_theorem_1: bool
    reasons: tuple[str, ...]  #: The conditions that fail or are unknown.
    patterns: int  #: Number of patterns, p.
    #: Number of patterns to which Eq. 5 of SBM-Transformer can give probability 1, see
    #: :func:`is_rectangle`.
    rectangles: int
    #: float64 ``[layers run]``, the fraction of (query, key) pairs reached after each layer.
    reach: np.ndarray


@dataclass(frozen=True)
class DiffusionUniversality(Result):
    """The answer to whether one pattern satisfies the conditions of Diffuser's Theorem 1 and of its
    proof."""

    #: Self-loops, connected, and a Hamiltonian path (sufficient, not necessary).
    assumption_1: bool | None
    self_loops: bool
    connected: bool  #: True if the undirected graph is connected.
    hamiltonian_path: bool | None
    #: True if a path begins at a global token, which attends to all others and is attended by them.
    global_first_token: bool | None
    enough_hops: bool  #: True if there are more hops than tokens.
    reasons: tuple[str, ...]  #: The conditions that fail or are unknown.


def universality(
    graphs: Sequence[GraphLike], *, time_limit: float = 30., seed: int = 0,
    max_layers: int = 10_000,
) -> Universality:
    r"""Check conditions 1 to 3 of Assumption 1 for p patterns that layers apply in turn.

    1. Every token attends to itself in every pattern: :math:`i \in \mathcal{A}_i^l`.
    2. The union of the patterns has a Hamiltonian path:
       :math:`\gamma(i) \in \bigcup_l \mathcal{A}_{\gamma(i + 1)}^l`.
    3. After s layers every token has information from all:

       .. math::
           s = \min\{t \mid \mathcal{S}_i^t = [n] \text{ for all } i\}, \quad
           \mathcal{S}_i^1 = \mathcal{A}_i^1, \quad \mathcal{S}_i^t =
           \bigcup_{j \in \mathcal{A}_i^{(t - 1) \bmod p + 1}} \mathcal{S}_j^{t - 1}.

       SBM-Transformer prints :math:`\mathcal{A}_k^1` for :math:`\mathcal{A}_i^1`.

    For fixed masks, they are sufficient, together with enough width and layers. They are not
    necessary: ``False`` means that this proof does not apply, not that no proof does. Full
    attention without the diagonal violates condition 1 and is universal for more than two tokens
    (SparseBERT, Theorem 1), see ``sparsebert_theorem_1``.

    Args:
        graphs: A graph for each of the p patterns, all on the same n tokens, see
            :func:`analysis.graphs.as_graph`.
        time_limit (float): Time limit in seconds of the search for a Hamiltonian path.
        seed (int): Seed of that search.
        max_layers (int): Maximum number of layers for condition 3. If reach repeats itself, the
            check ends earlier.

    Source: Yun et al., "O(n) connections are expressive enough" (2020), Assumption 1;
    SBM-Transformer, App. A. That self-loops are not necessary: Shi et al., "SparseBERT" (2021),
    Sec. 3.2, Theorem 1.

    Example:
        >>> from analysis.universality import lemma_2, universality
        >>> patterns = lemma_2(clusters=4)
        >>> result = universality([pattern.build(16) for pattern in patterns])
        >>> result.assumption_1, result.layers, result.rectangles
        (True, 5, 2)
    """
    graphs = _same_tokens(graphs)
    check_count('max_layers', max_layers)
    union = graphs[0]
    for graph in graphs[1:]:
        union = union | graph
    path = hamiltonian_path(union, time_limit=time_limit, seed=seed)
    layers, reach, unreached = layers_to_reach_all(graphs, max_layers)
    without_loop = [number for number, graph in enumerate(graphs, start=1)
                    if not has_self_loops(graph)]
    reasons = [f'condition 1: pattern {", ".join(map(str, without_loop))} lacks self-loops'
               if without_loop else None,
               'condition 2: ' + path.reason if path.reason else None,
               f'condition 3: {unreached}' if unreached else None]
    return Universality(
        assumption_1=_all(not without_loop, path.exists, layers is not None),
        self_loops=not without_loop, hamiltonian_path=path.exists, layers=layers,
        reasons=tuple(filter(None, reasons)), patterns=len(graphs),
        sparsebert_theorem_1=all(map(is_full_without_diagonal, graphs)),
        rectangles=sum(map(is_rectangle, graphs)), reach=reach)


def diffusion_universality(
    graph: GraphLike, *, hops: int = 5, time_limit: float = 30., seed: int = 0,
) -> DiffusionUniversality:
    r"""Check the conditions of Diffuser's Theorem 1 on one pattern that diffuses K hops a layer.

    Assumption 1 has two parts: all tokens attend to themselves, and the graph is connected and has
    a Hamiltonian path :math:`\gamma`. The proof of Lemma 8 requires two more: :math:`\gamma(1)` is
    a global token, and K exceeds the number of tokens, so that one layer carries information along
    the whole path. The proof therefore does not cover Diffuser's own K = 5 at any length of
    interest.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        hops (int): Number of diffusion steps, K.
        time_limit (float): Time limit in seconds of each search for a Hamiltonian path.
        seed (int): Seed of that search.

    Source: Feng et al., "Diffuser" (2023), Assumption 1, Theorem 1, and Lemma 8 in App. C.
    """
    graph, = _same_tokens([graph])
    check_count('hops', hops)
    n = graph.num_queries
    search = {'time_limit': time_limit, 'seed': seed}
    path = hamiltonian_path(graph, **search)
    components = connected_components(graph.to_scipy(), directed=False)[0] if n else 0
    has_loops, is_connected = has_self_loops(graph), components <= 1
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


def _begins_at_global_token(graph: BipartiteGraph, search: dict) -> bool | None:
    """Return whether a Hamiltonian path of the graph begins at a global token, or None if
    unknown."""
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


def has_self_loops(graph: BipartiteGraph) -> bool:
    return int((graph.key == graph.query).sum()) == graph.num_queries


def _all(*conditions: bool | None) -> bool | None:
    if any(condition is False for condition in conditions):
        return False
    return None if None in conditions else True


def _same_tokens(graphs: Sequence[GraphLike]) -> list[BipartiteGraph]:
    if not isinstance(graphs, list | tuple):
        raise TypeError(f"'graphs' must be a list of graphs, one for each pattern (got "
                        f"{type(graphs).__name__})")
    graphs = list(map(as_graph, graphs))
    if not graphs:
        raise ValueError("'graphs' must contain at least one graph, one for each pattern (got an "
                         "empty list)")
    for graph in graphs:
        if graph.num_queries != graph.num_keys or graph.num_keys != graphs[0].num_keys:
            raise ValueError(f"'graphs' must all have the same number of keys and queries (got "
                             f"{graph} after {graphs[0].num_queries} tokens)")
    return graphs


def layers_to_reach_all(graphs: list[BipartiteGraph], max_layers: int
                        ) -> tuple[int | None, np.ndarray, str | None]:
    """Count the layers until every token has information from every other token."""
    n = graphs[0].num_queries
    if n == 0:
        return 1, np.ones(1), None
    reached = np.packbits(np.eye(n, dtype=bool), axis=1)
    reached = np.pad(reached, [(0, 0), (0, -reached.shape[1] % 8)]).view(np.uint64)
    shares, states = [], set()
    for layer in tqdm(range(max_layers), desc='reach', unit='layer', delay=2, leave=False,
                      disable=None):
        graph = graphs[layer % len(graphs)]
        reached = bits_of_neighbours(reached, graph.indptr.cpu().numpy(), graph.key.cpu().numpy())
        shares.append(float(np.bitwise_count(reached).sum(dtype=np.int64)) / n**2)
        if shares[-1] == 1:
            return layer + 1, np.array(shares), None
        state = layer % len(graphs), blake2b(reached.tobytes(), digest_size=16).digest()
        if state in states:
            return None, np.array(shares), (f'reach repeats itself from layer {layer + 1} on, at '
                                            f'{shares[-1]:.3%} of the pairs')
        states.add(state)
    return None, np.array(shares), f'not all pairs are reached after {max_layers} layers'


def is_full_without_diagonal(graph: GraphLike) -> bool:
    """Return whether each of more than two tokens attends to all others but not to itself
    (SparseBERT, Theorem 1)."""
    graph = as_graph(graph)
    n = graph.num_queries
    return (n > 2 and n == graph.num_keys and graph.num_edges == n * (n - 1)
            and not bool((graph.key == graph.query).any()))


@dataclass(frozen=True, repr=False)
class Clusters(Pattern):
    """Every query attends to the keys of its cluster, one of ``count`` intervals."""

    count: int

    def __post_init__(self):
        self._require_int('count', at_least=1)

    def edges(self, num_queries: int, num_keys: int,
              generator: torch.Generator | None) -> Tensor:
        # with positions from 1, as printed, floor(ik/n) makes k + 1 clusters
        cluster_of_query = torch.arange(num_queries) * self.count // num_queries
        cluster_of_key = torch.arange(num_keys) * self.count // num_keys
        query, key = (cluster_of_query[:, None] == cluster_of_key).nonzero().t()
        return torch.stack([key, query])


@dataclass(frozen=True, repr=False)
class Relays(Pattern):
    """Every query attends to the last ``count`` keys; with ``listen``, the last ``count`` queries
    attend to every key."""

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
    r"""Return the patterns :math:`\mathcal{A}^1, \mathcal{A}^2, \mathcal{A}^3` of Lemma 2.

    They satisfy Assumption 1, with three corrections to the paper:

    - In this order, s = 5 (4 for two clusters), not 3: in layer 2, all attend to relays that have
      information from their own cluster only; in layer 3, the relays receive the rest, which layers
      4 and 5 pass on. The order :math:`\mathcal{A}^1, \mathcal{A}^3, \mathcal{A}^2` has s = 3.
    - They have :math:`n^2/k + 2kn + 2(n - k)` edges if k divides n, more than
      :math:`2 \sqrt{2} \, n^{3/2}` for every k, and so not O(n).
    - The path of the proof visits relays twice, the second time in their own cluster. Another path
      exists.

    Args:
        clusters (int): Number of clusters and of relays, k.

    Source: SBM-Transformer, App. A, Lemma 2 and Figure 6.
    """
    itself = SlidingWindow(0)
    return Clusters(clusters), itself | Relays(clusters), itself | Relays(clusters, listen=True)


def is_rectangle(graph: GraphLike) -> bool:
    """Return whether the edges are all pairs of some queries and some keys, up to self-loops: only
    then can Eq. 5 of SBM-Transformer give all of them probability 1."""
    # The entries of the mixing are positive and sum to 1, and memberships are at most 1, so
    # probability 1 requires membership 1 in all clusters.
    graph = as_graph(graph)
    is_edge = graph.key != graph.query
    query, key = graph.query[is_edge].unique(), graph.key[is_edge].unique()
    on_diagonal = int(torch.isin(query, key).sum())
    return int(is_edge.sum()) == query.numel() * key.numel() - on_diagonal
