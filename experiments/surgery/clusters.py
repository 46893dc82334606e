"""Clusters by content: a pattern for heads whose keys are others in each input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.surgery.losses import Loss, logits_of, mean_loss
from graphattn import BipartiteGraph
from graphattn.hugging_face import Fit, attached
from graphattn.patterns import Full, Pattern, SlidingWindow, parse
from graphattn.sources import GraphSource, PatternSource

SHARP = 0.1  # error of a head along its pattern, above which clusters are tried
Heads = tuple[Tensor, Tensor]  # queries and keys of a sequence, [tokens, heads, channels]


class Clusters(NamedTuple):
    """A block model of one head with hard clusters.

    Args:
        query (Tensor): Centroids of queries, ``[clusters, channels]``.
        key (Tensor): Centroids of keys, ``[clusters, channels]``.
        is_edge (Tensor): Which clusters of queries attend to which clusters of keys, bool
            ``[clusters, clusters]``.
    """

    query: Tensor
    key: Tensor
    is_edge: Tensor

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """Return which queries of a sequence attend to which keys, bool ``[tokens, tokens]``."""
        return self.is_edge[_nearest(query, self.query)][:, _nearest(key, self.key)]


class ClusterSource(GraphSource):
    """Attend along a pattern in each head, and in some heads also along clusters by content.

    Args:
        patterns (sequence of Pattern): The pattern of each head.
        clusters (dict): The clusters of some heads by their number.
    """

    per_head = True

    def __init__(self, patterns: Sequence[Pattern], clusters: dict[int, Clusters]):
        super().__init__()
        self.patterns, self.clusters = PatternSource([*patterns]), clusters
        self.heads, self.max_length = len(patterns), self.patterns.max_length

    def forward(self, query: Tensor, key: Tensor, ptr: Tensor, *, key_ptr: Tensor | None = None,
                generator: torch.Generator | None = None) -> BipartiteGraph:
        self.check_tokens(query, key, ptr, key_ptr)
        by_content = BipartiteGraph.batch([
            BipartiteGraph.from_mask(self._mask(head, query[first:last], key[first:last]))
            for head in range(self.heads) for first, last in pairwise(ptr.tolist())])
        return self.patterns.graph(ptr, generator) | by_content

    def _mask(self, head: int, query: Tensor, key: Tensor) -> Tensor:
        if head not in self.clusters:
            return torch.zeros(len(query), len(key), dtype=torch.bool)
        return self.clusters[head].mask(query[:, head], key[:, head])


def with_clusters(model: nn.Module, chosen: Fit, tokens: Tensor, loss: Loss, *, is_causal: bool,
                  count: int = 32) -> tuple[dict[str, ClusterSource], float]:
    """Replace the patterns of a fit by clusters in heads that cost less loss along them.

    Clusters are found on one half of the sequences, with as many edges as the pattern of the head
    has there. The loss along either is measured on the other half, for one head after the other.
    Only heads with an error above 0.1 along their pattern are tried.

    Returns:
        The source of each layer, and the mean density of all heads on the other half.
    """
    halves = tokens.split((len(tokens) + 1) // 2)
    found, other = (_queries_and_keys(model, chosen, half) for half in halves)
    own_loss = partial(mean_loss, tokens=halves[1], loss=loss, batch_size=8)
    along, density = {}, chosen.density.copy()
    for number, name in enumerate(chosen.layers):
        rows = np.flatnonzero(chosen.layer == number)
        patterns = [parse(chosen.patterns[row]) for row in rows]
        clusters: dict[int, Clusters] = {}
        for head, row in enumerate(rows):
            if chosen.error[row] > SHARP:
                tried = _clusters(found[name], head, chosen.density[row], count, is_causal)
                mine = partial(_loss_of_head, model, name, head, len(rows), own_loss)
                if mine(SlidingWindow(0), {head: tried}) < mine(patterns[head], {}):
                    clusters[head], patterns[head] = tried, SlidingWindow(0)
                    density[row] = _density(tried, other[name], head, is_causal)
        along[name] = ClusterSource(patterns, clusters)
    return along, float(density.mean())


def _loss_of_head(model: nn.Module, layer: str, head: int, heads: int,
                  loss: Callable[[nn.Module], float], pattern: Pattern,
                  clusters: dict[int, Clusters]) -> float:
    """Return the loss of the model if no other head is attached to a graph."""
    patterns = [pattern if number == head else Full() for number in range(heads)]
    with attached(model, {layer: ClusterSource(patterns, clusters)}):
        return loss(model)


class _Recorder(GraphSource):
    """Attend to all keys, and keep the queries and keys."""

    def __init__(self):
        super().__init__()
        self.seen: list[Heads] = []

    def forward(self, query: Tensor, key: Tensor, ptr: Tensor, *, key_ptr: Tensor | None = None,
                generator: torch.Generator | None = None) -> BipartiteGraph:
        bounds = [*pairwise(ptr.tolist())]
        self.seen += [(query[first:last], key[first:last]) for first, last in bounds]
        return PatternSource('Full()').graph(ptr)


@torch.no_grad()
def _queries_and_keys(model: nn.Module, chosen: Fit, tokens: Tensor) -> dict[str, list[Heads]]:
    seen = defaultdict(list)
    with attached(model, {name: _Recorder() for name in chosen.layers}):
        for batch in tokens.split(4):
            logits_of(model, batch)
        for name in chosen.layers:
            seen[name] = model.get_submodule(name).graph_source.seen
    return seen


def _clusters(seen: list[Heads], head: int, density: float, count: int,
              is_causal: bool) -> Clusters:
    """Return the clusters of a head, and of their pairs those with the most weight for each pair of
    tokens, within a density."""
    queries, keys = (torch.cat([part[:, head] for part in parts]) for parts in zip(*seen))
    count = min(count, len(queries))
    centroids = [_centroids(points, count) for points in (queries, keys)]
    weight, pairs = torch.zeros(2, count, count)
    for query, key in ((query[:, head], key[:, head]) for query, key in seen):
        allowed = _allowed(len(query), is_causal)
        logit = (query @ key.t() * query.size(1)**-.5).masked_fill(~allowed, -torch.inf)
        of_query, of_key = (nn.functional.one_hot(_nearest(points, centres), count).float()
                            for points, centres in zip((query, key), centroids))
        weight += of_query.t() @ logit.softmax(1) @ of_key
        pairs += of_query.t() @ allowed.float() @ of_key
    order = (weight / pairs.clamp(min=1)).flatten().argsort(descending=True)
    share = (pairs.flatten()[order] / pairs.sum()).cumsum(0)
    own = sum(map(len, (query for query, _ in seen))) / pairs.sum()  # pairs of a token with itself
    is_edge = torch.zeros(count * count, dtype=torch.bool)
    is_edge[order[share <= density - own]] = True
    return Clusters(*centroids, is_edge.view(count, count))


def _centroids(points: Tensor, count: int) -> Tensor:
    from sklearn.cluster import KMeans

    means = KMeans(count, n_init=1, random_state=0).fit(points.numpy()).cluster_centers_
    return torch.from_numpy(means).to(points)


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    return torch.cdist(points.detach(), centroids).argmin(1)


def _allowed(length: int, is_causal: bool) -> Tensor:
    mask = torch.ones(length, length, dtype=torch.bool)
    return mask.tril() if is_causal else mask


def _density(clusters: Clusters, seen: list[Heads], head: int, is_causal: bool) -> float:
    edges = pairs = 0
    for query, key in seen:
        allowed = _allowed(len(query), is_causal)
        mask = clusters.mask(query[:, head], key[:, head]) | torch.eye(len(query), dtype=torch.bool)
        edges, pairs = edges + int((mask & allowed).sum()), pairs + int(allowed.sum())
    return edges / pairs
