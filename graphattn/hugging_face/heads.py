"""Sources of some of a layer's heads: the other heads have the graph of all pairs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from graphattn._checks import check_size
from graphattn.hugging_face.modules import heads_of
from graphattn.patterns import Full, Pattern
from graphattn.sources import (
    ContentClusterSource,
    GraphSource,
    HeadClusters,
    PatternSource,
)
from graphattn.sources.content_clusters import source_of_each

__all__ = ['check_head_numbers', 'source_of_heads', 'without_heads']


def check_head_numbers(heads: Sequence[int], name: str, module: nn.Module) -> tuple[int, ...]:
    """Return numbers of heads of a module as a tuple, or raise an error."""
    if isinstance(heads, str) or not isinstance(heads, Sequence):
        raise TypeError(f"'heads' must be a sequence of ints, such as [0, 2] (got "
                        f"{type(heads).__name__})")
    if heads_of(module) is None:
        raise ValueError(f"'heads' must be None for {name!r}, because its config has no "
                         f"'num_attention_heads'; omit 'heads' to attach the whole layer")
    for head in heads:
        check_size('heads', head, at_most=heads_of(module) - 1)
    if not heads or len(set(heads)) < len(heads):
        raise ValueError(f"'heads' must contain at least one head, and each head only once (got "
                         f"{list(heads)})")
    return tuple(map(int, heads))


OF_HEADS = PatternSource | ContentClusterSource  # which list what each head attends along


def source_of_heads(source: GraphSource | None, heads: tuple[int, ...], module: nn.Module,
                    before: OF_HEADS | None) -> OF_HEADS:
    """Return a source in which the other heads attend along ``before``, or to all keys."""
    if not _lists_heads(source):
        raise ValueError(f"'along' must be one pattern, or a sequence of patterns with one for "
                         f"each head in 'heads' (got {type(source).__name__}, which has the "
                         f"edges of all heads already); omit 'heads'")
    if source.heads not in (None, len(heads)):
        raise ValueError(f"'along' must be one pattern, or {len(heads)} patterns, one for each "
                         f"head in 'heads' (got {source.heads} patterns)")
    patterns = [Full()] * heads_of(module) if before is None else [*before.patterns]
    if before is not None and _draws(before.patterns) and _draws(source.patterns) and (
            before.seed != source.seed):
        raise ValueError(f"'along' must have the seed {before.seed}, as the heads that are already "
                         f"attached (got the seed {source.seed})")
    seed = source.seed if before is None or _draws(source.patterns) else before.seed
    given = source.patterns if source.per_head else source.patterns * len(heads)
    for head, pattern in zip(heads, given):
        patterns[head] = pattern
    return source_of_each(patterns, seed)


def without_heads(source: GraphSource, heads: tuple[int, ...], module: nn.Module) -> OF_HEADS:
    """Return a source that differs from ``source`` only in that ``heads`` attend to all keys."""
    is_shared = isinstance(source, PatternSource) and not source.per_head
    if not _lists_heads(source) or is_shared and _draws(source.patterns):
        raise ValueError(f"'heads' must be None, because {source} is a source for all heads of the "
                         f"layer; omit 'heads' to detach the whole layer")
    patterns = [*source.patterns] * (heads_of(module) if is_shared else 1)
    for head in heads:
        patterns[head] = Full()
    return source_of_each(patterns, source.seed)


def _lists_heads(source: GraphSource | None) -> bool:
    is_causal = getattr(source, 'is_causal', False)  # which is said of all heads together
    return isinstance(source, OF_HEADS) and not is_causal


def _draws(patterns: Sequence[Pattern | HeadClusters]) -> bool:
    return any(pattern.is_random for pattern in patterns)
