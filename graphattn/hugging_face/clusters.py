"""Edges between clusters of queries and clusters of keys, which ``fit`` can choose for a head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn.hugging_face.attending import Attending, OneSequence
from graphattn.sources import ClusterKeys, HeadClusters
from graphattn.sources.content_clusters import nearest

__all__ = ['ClusterPoints', 'ClusterSums', 'InputClusters', 'LayerClusters', 'find',
           'head_clusters', 'join_clusters']

MAX_POINTS = 4096  # tokens of each half of the inputs that centroids are found on
MAX_STEPS = 25  # of k-means
Centroids = tuple[Tensor, Tensor]  # of queries and of keys, [heads, clusters, channels]


class LayerClusters(NamedTuple):
    """Clusters of the queries and keys of each head of a layer, and when their pairs are joined."""

    # Queries of a joined pair attend to all keys of its other cluster. Pairs are joined in
    # descending order of their mean weight for each pair of tokens.

    query: Tensor  # centroids, [heads, clusters, channels]
    key: Tensor
    # Mean number of keys of a query once this pair and all before it are joined; infinite for pairs
    # without weight. [heads, clusters of queries, clusters of keys]
    edges: Tensor

    def on(self, query: Tensor, key: Tensor) -> InputClusters:
        return InputClusters(self.edges, nearest(query, self.query), nearest(key, self.key))


class InputClusters(NamedTuple):
    """The cluster of each query and of each key of one input, in all heads of a layer."""

    edges: Tensor  # as in LayerClusters
    of_query: Tensor  # int64 [heads, length]
    of_key: Tensor

    def mask(self, keys: int, rows: Tensor) -> Tensor:
        """Return to which keys the queries ``rows`` attend, bool ``[heads, rows, length]``."""
        of_query, of_key = self.of_query[:, rows, None], self.of_key[:, None]
        joined = (self.edges <= keys).gather(1, of_query.expand(-1, -1, self.edges.size(2)))
        mask = joined.gather(2, of_key.expand(-1, len(rows), -1))
        mask[:, torch.arange(len(rows), device=rows.device), rows] = True
        return mask


# Finding #############################################################################


class ClusterPoints:
    """Random sample of the queries and keys of a layer, in which k-means finds clusters."""

    def __init__(self, counts: Sequence[int], seed: int):
        self.counts, self.seed = counts, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.points: list[Tensor] = []  # queries and keys, [heads, tokens, channels]
        self.order = torch.empty(0)  # of tokens, at random

    @property
    def is_empty(self) -> bool:
        return not self.points

    def begin(self, query: Tensor, key: Tensor) -> None:
        """Add the queries and keys of an input, both ``[heads, length, channels]``."""
        given = query, key
        self.points = [torch.cat(pair, dim=1) for pair in zip(self.points, given)] or [*given]
        self.order = torch.cat([self.order, torch.rand(query.size(1), generator=self.generator)])
        kept = self.order.argsort()[:MAX_POINTS].sort().values
        self.order = self.order[kept]
        self.points = [points[:, kept.to(points.device)] for points in self.points]

    def add(self, rows: Tensor, weight: Tensor) -> None:
        """Do nothing, because centroids do not depend on attention weights."""

    def centroids(self, other: ClusterPoints | None = None) -> dict[int, Centroids]:
        """Return the centroids in this sample, or in both together, by number of clusters."""
        points = self.points if other is None or other.is_empty else [
            torch.cat(pair, dim=1) for pair in zip(self.points, other.points)]
        return {count: tuple(k_means(each, count, self.seed) for each in points)
                for count in self.counts}


class ClusterSums:
    """Sums of the attention weights between each cluster of queries and each cluster of keys."""

    def __init__(self, centroids: Mapping[int, Centroids]):
        self.centroids, self.num_rows = centroids, 0
        self.weight, self.pairs = ({count: torch.zeros((), dtype=torch.double)
                                    for count in centroids} for _ in range(2))
        self.members: dict[int, tuple[Tensor, ...]] = {}  # 1 at the cluster of each token

    @property
    def is_empty(self) -> bool:
        return self.num_rows == 0

    def begin(self, query: Tensor, key: Tensor) -> None:
        """Assign the queries and keys of an input, ``[heads, length, channels]``, to clusters."""
        self.members = {count: tuple(F.one_hot(nearest(*pair), count).to(query)
                                     for pair in zip((query, key), centroids))
                        for count, centroids in self.centroids.items()}

    def add(self, rows: Tensor, weight: Tensor) -> None:
        """Add the attention weights ``[heads, rows, length]`` of some queries of the input."""
        others = weight.clone()  # without those of tokens on themselves
        others[:, torch.arange(len(rows), device=rows.device), rows] = 0
        is_pair = (others > 0).to(others)
        for count, (of_query, of_key) in self.members.items():
            of_rows = of_query[:, rows].mT
            for sums, values in ((self.weight, others), (self.pairs, is_pair)):
                sums[count] = (of_rows @ (values @ of_key)).double() + sums[count].to(values.device)
        self.num_rows += len(rows)

    def clusters(self) -> dict[int, LayerClusters]:
        return {count: LayerClusters(*centroids, self._edges(count))
                for count, centroids in self.centroids.items()}

    def _edges(self, count: int) -> Tensor:
        weight, pairs = (each[count].flatten(1) for each in (self.weight, self.pairs))
        order = (weight / pairs.clamp(min=1)).argsort(dim=1, descending=True, stable=True)
        total = 1 + pairs.gather(1, order).cumsum(1) / self.num_rows
        edges = torch.empty_like(total).scatter_(1, order, total)
        return edges.masked_fill(weight <= 0, torch.inf).float().view(-1, count, count)


def k_means(points: Tensor, count: int, seed: int) -> Tensor:
    """Return ``count`` centroids of each set of points, both ``[batch, points, channels]``."""
    # Arthur and Vassilvitskii, "k-means++: The advantages of careful seeding" (2007).
    generator = torch.Generator().manual_seed(seed)
    centroids = _first_centroids(points, count, generator)
    cluster = None
    for _ in range(MAX_STEPS):
        before, cluster = cluster, nearest(points, centroids)
        if before is not None and torch.equal(before, cluster):
            break
        at = cluster.unsqueeze(2)
        total = torch.zeros_like(centroids).scatter_add_(1, at.expand_as(points), points)
        size = torch.zeros_like(centroids[..., :1]).scatter_add_(1, at, torch.ones_like(points))
        centroids = torch.where(size > 0, total / size.clamp(min=1), centroids)
    return centroids


def _first_centroids(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    # A point is drawn in proportion to its squared distance from the nearest centroid so far.
    batch, num_points, _ = points.shape
    head = torch.arange(batch, device=points.device)
    distance = points.new_ones(batch, num_points)
    chosen = []
    for number in range(count):
        whole = distance.cumsum(1, dtype=torch.double).cpu()
        draw = torch.rand(batch, 1, generator=generator, dtype=torch.double) * whole[:, -1:]
        at = torch.searchsorted(whole, draw, right=True).clamp(max=num_points - 1)
        chosen.append(points[head, at.squeeze(1).to(head.device)])
        own = (points - chosen[-1].unsqueeze(1)).square().sum(2)
        distance = own if number == 0 else distance.minimum(own)
    return torch.stack(chosen, dim=1)


@dataclass
class _Collecting(Attending):
    # For each layer: collectors for inputs of even index, and for those of odd index.
    collectors: dict[str, tuple[Sequence[ClusterPoints | ClusterSums], ...]]
    num_inputs: Counter[str] = field(default_factory=Counter)

    def _see(self, name: str, one: OneSequence, value: Tensor, is_special: Tensor | None) -> Tensor:
        out, collectors = torch.empty_like(value), self.collectors[name][self.num_inputs[name] % 2]
        for each in collectors:
            each.begin(one.query, one.key)
        for rows in one.blocks():
            weight = one.weights(rows)
            out[:, rows] = weight @ value
            for each in collectors:
                each.add(rows, weight)
        self.num_inputs[name] += 1
        return out


def find(names: Sequence[str], counts: Sequence[int], run: Callable[[Attending], None],
         seed: int) -> dict[str, tuple[dict[int, LayerClusters], ...]]:
    """Return clusters of each layer, for inputs of even and odd index, and of all inputs."""
    points = {name: (ClusterPoints(counts, seed), ClusterPoints(counts, seed)) for name in names}
    run(_Collecting({name: ([even], [odd]) for name, (even, odd) in points.items()}))
    sums = {name: [*map(ClusterSums, (even.centroids(), odd.centroids(), even.centroids(odd)))]
            for name, (even, odd) in points.items() if not even.is_empty}
    run(_Collecting({name: ([even, every], [odd, every])
                     for name, (even, odd, every) in sums.items()}))
    # Each half is measured along what the other half found; a single input is both.
    return {name: tuple((even if each.is_empty else each).clusters() for each in (odd, even, every))
            for name, (even, odd, every) in sums.items()}


# Fields of a profile #################################################################


def join_clusters(layers: Sequence[Mapping[int, LayerClusters]],
                  num_heads: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the clusters of all layers as fields of a :class:`Profile`, by name."""
    counts = [*layers[0]] if layers else []
    if not counts:
        heads = sum(num_heads)
        return {'clusters': np.zeros(0, np.int64), 'channels': np.zeros(heads, np.int64),
                'cluster_query': np.zeros((heads, 0, 0), np.float32),
                'cluster_key': np.zeros((heads, 0, 0), np.float32),
                'cluster_edges': np.zeros((heads, 0), np.float32)}
    channels = [layer[counts[0]].query.size(2) for layer in layers]

    def joined(name: str) -> np.ndarray:
        parts = [torch.cat([getattr(each, name) for each in layer.values()], dim=1)
                 for layer in layers]
        parts = [F.pad(part, (0, max(channels) - part.size(2))) for part in parts]
        return torch.cat(parts).float().cpu().numpy()

    edges = [torch.cat([each.edges.flatten(1) for each in layer.values()], dim=1)
             for layer in layers]
    return {'clusters': np.array(counts), 'channels': np.repeat(channels, num_heads),
            'cluster_query': joined('query'), 'cluster_key': joined('key'),
            'cluster_edges': torch.cat(edges).cpu().numpy()}


def head_clusters(name: ClusterKeys, values: Mapping[str, np.ndarray], row: int) -> HeadClusters:
    """Return the clusters of the head with index ``row`` in the fields of a profile."""
    counts = values['clusters']
    at = counts.tolist().index(name.clusters)
    first, count = int(counts[:at].sum()), name.clusters
    query, key = (torch.tensor(values[side][row, first:first + count, :values['channels'][row]])
                  for side in ('cluster_query', 'cluster_key'))
    first = int((counts[:at]**2).sum())
    edges = torch.tensor(values['cluster_edges'][row, first:first + count**2])
    return HeadClusters(name, query, key, (edges <= name.keys).view(count, count))
