"""Lemma 2 of SBM-Transformer: three patterns that satisfy Assumption 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from analysis.graphs import GraphLike, as_graph
from graphattn.patterns import Pattern, SlidingWindow


@dataclass(frozen=True, repr=False)
class Clusters(Pattern):
    r"""Every query attends to the keys of its cluster, one of ``count`` intervals:
    :math:`\lfloor ik/n \rfloor = \lfloor jk/n \rfloor` with positions from 0.

    With positions from 1, as printed, :math:`\lfloor ik/n \rfloor` makes k + 1 clusters.

    Eq. 5 of SBM-Transformer cannot express this pattern, see :func:`is_rectangle`: with one-hot
    memberships, the probability inside cluster u is :math:`\hat S_{uu}`, on average at most 1/k.

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
    r"""Every query attends to the last ``count`` keys; with ``listen``, the last ``count`` queries
    attend to every key.

    Both are rectangles, which Eq. 5 of SBM-Transformer can express.

    Args:
        count (int): Number of relays.
        listen (bool): Let the relays attend to all, instead of all to the relays.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``count`` is negative.

    Source: SBM-Transformer, App. A, Lemma 2, :math:`\mathcal{A}^2` and :math:`\mathcal{A}^3`
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
    r"""Return whether the edges of a graph are all pairs :math:`I \times J` of some queries I and
    some keys J, up to self-loops.

    Only then can Eq. 5 of SBM-Transformer give all of its edges probability 1. In

    .. math::
        p_{ij} = \sum_{uv} \hat S_{uv} \, \hat Q_{iu} \, \hat K_{jv}

    the entries of :math:`\hat S` are positive and sum to 1, and memberships are at most 1, so
    :math:`p_{ij} = 1` requires :math:`\hat Q_i = 1` and :math:`\hat K_j = 1` in all entries, and
    then holds for all such i and j. With another normalisation of the mixing, more patterns are
    possible.

    Args:
        graph: See :func:`analysis.graphs.as_graph`.

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
