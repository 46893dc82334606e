"""A pattern for every head, and hard clusters of the queries and of the keys of a head, by
content."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphattn._checks import (
    check_bool,
    check_floating,
    check_integers,
    check_kind,
    check_on,
    check_shape,
    check_sides,
    check_size,
    check_strided,
)
from graphattn._tensors import host_copy, narrow, outside_transforms, unwrap, without_autocast
from graphattn.functional.drive import LOCAL, Placement
from graphattn.functional.shard import Shard, check_shard
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import merge_row_ranges, sort_numbers
from graphattn.graphs.segments import segment_of
from graphattn.patterns import Causal, Pattern, SlidingWindow, parse
from graphattn.patterns.layouts import ranges
from graphattn.sources.base import GraphSource, fold_ptr
from graphattn.sources.pattern_source import PatternSource

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
    """Parse ``'8 keys of 32 clusters | GlobalTokens(1)'``; None for another form."""
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


class ContentClusterSource(GraphSource):
    r"""Attend along a pattern in each head, and in some heads also along clusters by content.

    A query and a key of head h belong to the cluster of the nearest centroid:

    .. math::
        c(q_i) = \operatorname{argmin}_c \lVert q_i - Q_{hc} \rVert, \quad
        d(k_j) = \operatorname{argmin}_d \lVert k_j - K_{hd} \rVert

    and query i attends to the keys of its pattern, and to each key j with
    :math:`B_{h\,c(q_i)\,d(k_j)}`. This is a stochastic block model of hard memberships and
    probabilities 0 and 1. The centroids Q and K and the table B are buffers, and are not trained:
    :func:`graphattn.hugging_face.profile` finds them. For n tokens, k clusters, c channels and E
    edges, a call takes O(E + nkc) time and O(E + nk) memory. The number of edges grows with the
    square of the length.

    Args:
        pattern (sequence): For each head a Pattern, its expression, a :class:`HeadClusters`, or a
            name such as ``'8 keys of 32 clusters | GlobalTokens(1)'``. A head with only a name has
            no edges along clusters until :meth:`load_state_dict` loads its clusters.
        head_channels (int): Size of a head.
        seed (int, optional): Seed of random patterns, as in :class:`PatternSource`.
        causal (bool): Whether queries attend to no later key.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``pattern`` is empty or cannot be read, or centroids have another size.

    Example:
        >>> import torch
        >>> from graphattn.sources import ClusterKeys, ContentClusterSource, HeadClusters
        >>> centroids = torch.eye(4, 8)
        >>> clusters = HeadClusters(ClusterKeys(10, 4), centroids, centroids, torch.eye(4) > 0)
        >>> source = ContentClusterSource(['SlidingWindow(1)', clusters], head_channels=8)
        >>> query, key = torch.randn(2, 40, 2, 8)
        >>> graph = source(query, key, torch.tensor([0, 40]))
        >>> cluster = (key[:, 1] @ centroids.T).argmax(1), (query[:, 1] @ centroids.T).argmax(1)
        >>> mask = cluster[1][:, None] == cluster[0]
        >>> torch.equal(graph.unbatch()[1].to_mask(), mask | torch.eye(40, dtype=torch.bool))
        True
    """

    per_head = True

    def __init__(self, pattern: Sequence[Pattern | str | HeadClusters], head_channels: int, *,
                 seed: int | None = 0, causal: bool = False):
        super().__init__()
        if isinstance(pattern, str) or not isinstance(pattern, Sequence):
            raise TypeError(f"'pattern' must be a sequence with a pattern for each head (got "
                            f"{type(pattern).__name__})")
        check_sides(head_channels=head_channels)
        check_bool(causal=causal)
        parts = [_part(each) for each in pattern]
        self.names = tuple(part.name if isinstance(part, HeadClusters) else part for part in parts)
        fixed = PatternSource([_pattern(name) for name in self.names], seed)
        self.fixed = fixed.causal() if causal else fixed
        self.heads, self.max_length = self.fixed.heads, self.fixed.max_length
        self.head_channels, self.seed, self.is_causal = head_channels, self.fixed.seed, causal
        self.clusters = nn.ModuleDict({
            str(head): _Buffers(name.clusters, head_channels)
            for head, name in enumerate(self.names) if isinstance(name, ClusterKeys)})
        for head, part in enumerate(parts):
            if isinstance(part, HeadClusters):
                self.clusters[str(head)].fill(part)

    @property
    def patterns(self) -> tuple[Pattern | HeadClusters, ...]:
        """The pattern or the clusters of each head, in a form that the argument ``pattern``
        accepts."""
        return tuple(HeadClusters(name, **dict(self.clusters[str(head)].named_buffers()))
                     if isinstance(name, ClusterKeys) else name
                     for head, name in enumerate(self.names))

    def arguments(self) -> dict[str, Any]:
        PatternSource([_pattern(name) for name in self.names], self.seed).arguments()  # or raises
        return {'pattern': list(map(repr, self.names)), 'head_channels': self.head_channels,
                'seed': self.seed, 'causal': self.is_causal}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        placement: Placement = LOCAL,
        first: Tensor | None = None,
        causal: bool = False,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        """Return the graph over all sequences, as in :class:`GraphSource`.

        Args:
            query, key, ptr, key_ptr, placement, generator: As in :class:`GraphSource`.
            first (Tensor, optional): Position of the first query of each sequence among its keys,
                int64 ``[num_sequences]``, if earlier tokens are in a cache; 0 if omitted.
            causal (bool): Whether to leave out later keys, as a causal source does.
        """
        self.check_tokens(query, key, ptr, key_ptr, generator)
        check_bool(causal=causal)
        if placement is not LOCAL:
            return self._rows(query, key, check_shard(placement), generator)
        key_ptr = ptr if key_ptr is None else key_ptr
        if first is not None:
            _check_first(first, key_ptr)
        return self._graph(query, key, (ptr, key_ptr), first, causal, generator)

    @torch.compiler.disable(reason='the edges depend on the values of the tokens')
    def _graph(self, query: Tensor, key: Tensor, ptrs: tuple[Tensor, Tensor], first: Tensor | None,
               causal: bool, generator: torch.Generator | None) -> BipartiteGraph:
        counts, lengths = (host_copy(ptr).diff().tolist() for ptr in ptrs)
        begins = [0] * len(counts) if first is None else host_copy(first).tolist()
        spans = [(begin, begin + count) for begin, count in zip(begins, counts)]
        fixed = self.fixed.span_graph(lengths, spans, key.device, generator=generator,
                                      within=Causal() if causal else None)
        clusters = self._clusters(query, 'query'), self._clusters(key, 'key')
        return self._joined(fixed, clusters, ptrs, first, causal)

    def _rows(self, query: Tensor, key: Tensor, shard: Shard,
              generator: torch.Generator | None) -> BipartiteGraph:
        # A process receives one int64 for each key and each head that has clusters.
        of_keys = shard.gather(self._clusters(key, 'key').t().contiguous()).t()
        first = [begin for begin, _ in shard.spans()]
        return self._joined(self.fixed.shard_graph(shard, generator),
                            (self._clusters(query, 'query'), of_keys),
                            (shard.own_ptr, shard.ptr), _index(first, key.device))

    def causal(self) -> ContentClusterSource:
        source = copy.deepcopy(self)
        source.fixed, source.is_causal = self.fixed.causal(), True
        return source

    def _clusters(self, x: Tensor, side: str) -> Tensor:
        with outside_transforms(), without_autocast(x.device):
            x = unwrap(x)  # [num_tokens, all heads, channels]
            found = [nearest(x[None, :, int(head)], getattr(clusters, side)[None])
                     for head, clusters in self.clusters.items()]
            return torch.cat(found) if found else x.new_empty(0, len(x), dtype=torch.long)

    def _joined(self, fixed: BipartiteGraph, clusters: tuple[Tensor, Tensor],
                ptrs: tuple[Tensor, Tensor], first: Tensor | None = None,
                causal: bool = False) -> BipartiteGraph:
        # first: position of the first query of each sequence among its keys. causal: leave out
        # later keys even if the source is not causal.
        if not self.clusters:
            return fixed
        with outside_transforms():
            heads = _index([*map(int, self.clusters)], fixed.device)
            limit = self._limits(*ptrs, first) if causal or self.is_causal else None
            tables = [head.is_edge for head in self.clusters.values()]
            *ends, listed = _rows_of_clusters(clusters, tables, heads, ptrs, limit)
            num_queries, num_keys = (part.size(1) for part in clusters)
            begin, end = (part.new_zeros(self.heads, num_queries).index_copy(0, heads, part)
                          .flatten() for part in ends)
            bound = self.heads * num_keys
            indptr, key = merge_row_ranges(fixed.csr, begin, end, narrow(listed, bound))
            folded = fold_ptr(ptrs[0], self.heads, num_queries)
            is_square = ptrs[0] is ptrs[1]
            folded_keys = folded if is_square else fold_ptr(ptrs[1], self.heads, num_keys)
            return BipartiteGraph.from_csr(indptr, key, bound, query_ptr=folded,
                                           key_ptr=folded_keys, validate=False)

    def _limits(self, ptr: Tensor, key_ptr: Tensor, first: Tensor | None) -> Tensor:
        # the last key that a query may attend to is the key at its own position
        shift = key_ptr[:-1] - ptr[:-1] + (0 if first is None else first)
        of_query = segment_of(ptr)
        own = torch.arange(len(of_query), device=ptr.device) + shift[of_query]
        return own.minimum(key_ptr[1:][of_query] - 1)

    def extra_repr(self) -> str:
        names = list(map(str, self.names))
        return ', '.join(dict.fromkeys(names)) + (', causal=True' if self.is_causal else '')


class _Buffers(nn.Module):
    """Buffers of one head: centroids of queries and of keys, and a table of joined clusters."""

    def __init__(self, clusters: int, channels: int):
        super().__init__()
        self.query, self.key = (nn.Buffer(torch.zeros(clusters, channels)) for _ in range(2))
        self.is_edge = nn.Buffer(torch.zeros(clusters, clusters, dtype=torch.bool))

    def fill(self, clusters: HeadClusters) -> None:
        if clusters.query.shape != self.query.shape:
            raise ValueError(f"'pattern' must have centroids of shape {tuple(self.query.shape)}, "
                             f"[number of clusters, 'head_channels'] of the source (got shape "
                             f"{tuple(clusters.query.shape)}); pass clusters of this shape")
        for name, buffer in self.named_buffers():
            buffer.copy_(getattr(clusters, name))


def _rows_of_clusters(clusters: tuple[Tensor, Tensor], tables: Sequence[Tensor], heads: Tensor,
                      ptrs: tuple[Tensor, Tensor],
                      limit: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    # Begin and end of the keys of each query in a list of keys, [heads, queries], and this list, in
    # which queries of a cluster share a range of ascending keys.
    # A group contains the tokens of one cluster in one sequence and head. Keys, numbered head *
    # num_keys + key, are sorted by group, and each group of queries gets the list of all keys in
    # the groups that it is joined with.
    num_sequences, num_keys, device = ptrs[0].numel() - 1, clusters[1].size(1), heads.device
    sizes = _index([len(table) for table in tables], device)
    base = num_sequences * (sizes.cumsum(0) - sizes)  # the first group of each head
    of_query, of_key = (base[:, None] + segment_of(each) * sizes[:, None] + part
                        for part, each in zip(clusters, ptrs))
    num_groups = num_sequences * int(sizes.sum())
    node = heads[:, None] * num_keys + torch.arange(num_keys, device=device)
    grouped = node.flatten()[of_key.flatten().argsort(stable=True)]
    group_ptr = _pointer(of_key.flatten().bincount(minlength=num_groups))

    is_present = of_query.flatten().bincount(minlength=num_groups) > 0
    present, slot = is_present.nonzero().flatten(), (is_present.cumsum(0) - 1)[of_query]
    owner, group = _joined_groups(present, base, tables)
    member, at = ranges(group_ptr[group], group_ptr[group + 1])
    bound = (int(heads.max()) + 1) * num_keys
    listed = sort_numbers(owner[member] * bound + grouped[at])  # by group of queries, then by key
    list_ptr = torch.searchsorted(listed, torch.arange(len(present) + 1, device=device) * bound)
    begin, end = list_ptr[slot], list_ptr[slot + 1]
    if limit is not None:
        last = heads[:, None] * num_keys + limit
        end = torch.searchsorted(listed, slot * bound + last, right=True)
    return begin, end, listed % max(bound, 1)


def _joined_groups(present: Tensor, base: Tensor,
                   tables: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    # Of each joined pair: the index in present of the group of queries, ascending, and the number
    # of the group of keys. present: ascending numbers of groups with queries.
    sizes = _index([len(table) for table in tables], base.device)
    head = torch.searchsorted(base, present, right=True) - 1
    cluster = (present - base[head]) % sizes[head]
    row = (sizes.cumsum(0) - sizes)[head] + cluster  # of all tables, one below the other
    table_ptr = _pointer(torch.cat([table.sum(1) for table in tables]))
    joined = torch.cat([table.nonzero()[:, 1] for table in tables])
    owner, at = ranges(table_ptr[row], table_ptr[row + 1])
    return owner, (present - cluster)[owner] + joined[at]


def _pointer(count: Tensor) -> Tensor:
    return nn.functional.pad(count.cumsum(0), (1, 0))


def _check_first(first: Tensor, key_ptr: Tensor) -> None:
    check_integers('first', first)
    check_shape('first', first, (key_ptr.numel() - 1,), ', a position for each sequence')
    check_on('first', first, key_ptr.device, "'key_ptr'")
    if bool((first < 0).any() or (first > key_ptr.diff()).any()):
        raise ValueError(f"'first' must have positions from 0 to the number of keys of each "
                         f"sequence (got {first.tolist()} for {key_ptr.diff().tolist()} keys)")


def _index(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([*values], dtype=torch.long, device=device)


def _part(given: Pattern | str | HeadClusters) -> Pattern | ClusterKeys | HeadClusters:
    if isinstance(given, str):
        try:
            return read_clusters(given) or parse(given)
        except ValueError as error:
            raise ValueError(f"'pattern' cannot be read: {error}") from error
    if not isinstance(given, Pattern | ClusterKeys | HeadClusters):
        raise TypeError(f"'pattern' must have a Pattern, a str or HeadClusters for each head (got "
                        f"{type(given).__name__})")
    return given


def _pattern(name: Pattern | ClusterKeys) -> Pattern:
    return name.pattern if isinstance(name, ClusterKeys) else name


def as_source(source: GraphSource | Pattern | HeadClusters | str) -> GraphSource:
    """Return ``source`` as a GraphSource. A GraphSource is returned unchanged. A pattern, an
    expression or the name of a preset becomes a PatternSource. HeadClusters become a
    ContentClusterSource of one head."""
    is_class = isinstance(source, type)
    # or a wrapped source
    if isinstance(source, GraphSource) or hasattr(source, 'logit_terms') and not is_class:
        return source
    if not isinstance(source, Pattern | HeadClusters | str):
        given = f'the class {source.__name__}' if is_class else type(source).__name__
        raise TypeError(f"'source' must be a GraphSource, a Pattern, or a str such as "
                        f"'SlidingWindow(3)' (got {given})"
                        f"{f'; pass {source.__name__}(...)' if is_class else ''}")
    is_clusters = isinstance(source, HeadClusters)
    return source_of_each([source]) if is_clusters else PatternSource(source)


def source_of_each(heads: Sequence[Pattern | str | HeadClusters],
                   seed: int | None = 0) -> PatternSource | ContentClusterSource:
    """Return a source in which head h has the pattern or the clusters ``heads[h]``."""
    channels = [head.query.size(1) for head in heads if isinstance(head, HeadClusters)]
    return ContentClusterSource(heads, channels[0], seed=seed) if channels else PatternSource(
        heads, seed)
