"""Sources of patterns and of clusters."""

from __future__ import annotations

from collections.abc import Sequence

from graphattn.patterns import Pattern
from graphattn.sources.base import GraphSource
from graphattn.sources.content_clusters import ContentClusterSource
from graphattn.sources.head_clusters import HeadClusters
from graphattn.sources.pattern_source import PatternSource


def as_source(source: GraphSource | Pattern | HeadClusters | str) -> GraphSource:
    """Return ``source`` as a GraphSource. A GraphSource is returned unchanged. A pattern, an
    expression or the name of a preset becomes a PatternSource. HeadClusters become a
    ContentClusterSource of one head."""
    if isinstance(source, GraphSource) or hasattr(source, 'logit_terms'):  # or a wrapped source
        return source
    if not isinstance(source, Pattern | HeadClusters | str):
        raise TypeError(f"'source' must be a GraphSource, a Pattern, or a str such as "
                        f"'SlidingWindow(3)' (got {type(source).__name__})")
    is_clusters = isinstance(source, HeadClusters)
    return source_of_each([source]) if is_clusters else PatternSource(source)


def source_of_each(heads: Sequence[Pattern | str | HeadClusters],
                   seed: int | None = 0) -> PatternSource | ContentClusterSource:
    """Return a source in which head h has the pattern or the clusters ``heads[h]``."""
    channels = [head.query.size(1) for head in heads if isinstance(head, HeadClusters)]
    return ContentClusterSource(heads, channels[0], seed=seed) if channels else PatternSource(
        heads, seed)
