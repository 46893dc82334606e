"""Random clusters of heads, and the dense definition of their edges."""

from itertools import pairwise

import torch
from torch import Tensor

from graphattn.patterns import GlobalTokens, Pattern
from graphattn.sources import ClusterKeys, ContentClusterSource, HeadClusters


def random_clusters(channels: int, count: int = 5, seed: int = 0,
                    beside: Pattern | None = None) -> HeadClusters:
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, count, channels, generator=generator)
    is_edge = torch.rand(count, count, generator=generator) < .4
    return HeadClusters(ClusterKeys(3, count, beside), query, key, is_edge)


def cluster_source(heads: int, channels: int, **options) -> ContentClusterSource:
    """The first head has a window only, and the others have clusters of their own sizes."""
    clusters = [random_clusters(channels, 3 + head, head, GlobalTokens(1) if head % 2 else None)
                for head in range(1, heads)]
    return ContentClusterSource(['SlidingWindow(1)', *clusters], channels, **options)


def mask_by_hand(source: ContentClusterSource, query: Tensor, key: Tensor, ptr: Tensor,
                 key_ptr: Tensor | None = None) -> Tensor:
    """Return the mask of the folded graph, by distances between all tokens and centroids."""
    key_ptr = ptr if key_ptr is None else key_ptr
    mask = torch.zeros(source.heads, len(query), source.heads, len(key), dtype=torch.bool)
    for head, pattern in enumerate(source.patterns):
        for (i, j), (k, m) in zip(pairwise(ptr.tolist()), pairwise(key_ptr.tolist())):
            is_clusters = isinstance(pattern, HeadClusters)
            fixed = pattern.name.pattern if is_clusters else pattern
            own = fixed.build(j - i, m - k, crop=True).to_mask()
            if is_clusters and own.numel():
                of_query = _nearest(query[i:j, head], pattern.query)
                of_key = _nearest(key[k:m, head], pattern.key)
                own = own | pattern.is_edge[of_query][:, of_key]
            if source.is_causal:
                own = own & (torch.arange(m - k) <= torch.arange(j - i)[:, None])
            mask[head, i:j, head, k:m] = own
    return mask.flatten(2).flatten(0, 1)


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    return (points.double()[:, None] - centroids.double()).square().sum(2).argmin(1)
