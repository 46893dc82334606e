"""Hard clusters of the queries and of the keys of a head, and how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn._checks import (
    check_floating,
    check_kind,
    check_on,
    check_shape,
    check_sides,
    check_size,
    check_strided,
)
from graphattn.patterns import Pattern, SlidingWindow, parse

MAX_CLUSTERS = 4096  # of a side, because a table has a value for each pair
_NAME = re.compile(r'\s*(\d+) keys of (\d+) clusters\s*(?:\|(.*))?', re.DOTALL)


@dataclass(frozen=True, repr=False)
class ClusterKeys:
    """Description of how a head attends along clusters, such as ``'8 keys of 32 clusters'``,
    without the clusters themselves.

    Args:
        keys (int): Mean number of keys of a query, including the query itself. The pairs of
            clusters that attend to one another were chosen for this number.
        clusters (int): Number of clusters of queries, and of clusters of keys, at most 4,096.
        beside (Pattern, optional): Pattern of further edges, which do not depend on clusters.

    Raises:
        TypeError, ValueError: A number is out of range, or ``beside`` is no Pattern.
    """

    keys: int
    clusters: int
    beside: Pattern | None = None

    def __post_init__(self):
        check_sides(keys=self.keys)
        check_size('clusters', self.clusters, 1, MAX_CLUSTERS)
        if self.beside is not None:
            check_kind('beside', self.beside, Pattern)

    @property
    def pattern(self) -> Pattern:
        """The pattern of the edges that do not depend on content: a self-loop of each query, and
        the edges of ``beside``."""
        itself = SlidingWindow(0)
        return itself if self.beside is None else itself | self.beside

    def __repr__(self) -> str:
        return self._text(repr)

    def __str__(self) -> str:
        return self._text(str)

    def _text(self, show) -> str:
        beside = '' if self.beside is None else f' | {show(self.beside)}'
        return f'{self.keys} keys of {self.clusters} clusters{beside}'


def read_clusters(text: str) -> ClusterKeys | None:
    """Parse ``'8 keys of 32 clusters | GlobalTokens(1)'``, or return ``None`` for a text of other
    form."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    keys, clusters, beside = found.groups()
    return ClusterKeys(int(keys), int(clusters), None if beside is None else parse(beside))


@dataclass(frozen=True, eq=False)
class HeadClusters:
    """Clusters of the queries and of the keys of one head, by their content.

    A query attends to itself, to the keys of a pattern, and to the keys whose cluster is joined
    with its own cluster. A token belongs to the cluster of the nearest centroid.

    Args:
        name (ClusterKeys): Number of clusters, and the pattern.
        query (Tensor): Centroids of queries before scaling, floating ``[clusters, channels]``.
        key (Tensor): Centroids of keys, shaped like ``query``.
        is_edge (Tensor): Which clusters of queries attend to which clusters of keys, bool
            ``[clusters, clusters]``.

    Raises:
        TypeError, ValueError: Dtypes or shapes are not as described.
    """

    name: ClusterKeys
    query: Tensor
    key: Tensor
    is_edge: Tensor

    def __post_init__(self):
        check_kind('name', self.name, ClusterKeys)
        check_floating(query=self.query, key=self.key)
        check_kind('is_edge', self.is_edge, Tensor)
        check_strided('is_edge', self.is_edge)
        count = self.name.clusters
        for name, x, shape in (('query', self.query, (count, 'channels')),
                               ('key', self.key, tuple(self.query.shape)),
                               ('is_edge', self.is_edge, (count, count))):
            check_shape(name, x, shape, f", as 'name' says {count} clusters")
            check_on(name, x, self.query.device, "'query'")
        if self.is_edge.dtype != torch.bool:
            raise TypeError(f"'is_edge' must be a bool Tensor (got {self.is_edge.dtype})")

    @property
    def is_random(self) -> bool:
        """Return whether the edges depend on a seed."""
        return self.name.pattern.is_random

    def __repr__(self) -> str:
        return repr(self.name)

    def __str__(self) -> str:
        return str(self.name)


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of each point, int64 ``[batch, points]``."""
    # |x - c|^2 = |x|^2 - 2 <x, c> + |c|^2, in at least float32, because differences are small.
    dtype = torch.promote_types(torch.promote_types(points.dtype, centroids.dtype), torch.float)
    points, centroids = points.to(dtype), centroids.to(dtype)
    norm = centroids.square().sum(2).unsqueeze(1)
    return torch.baddbmm(norm, points, centroids.mT, alpha=-2).argmin(2)
