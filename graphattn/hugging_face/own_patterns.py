"""Edges that a fit can choose and that differ between heads: where a head has the most weight.

``'8 own keys'`` are, at each position of a sequence, the position itself and the 7 other keys with
the largest mean weight over all inputs; at positions that no input has, the 7 keys before it.
``'4 own offsets'`` are offset 0 and the 3 other offsets with the largest sum of weights.
``'4 own offsets | GlobalTokens(1)'`` joins these edges with a pattern. Clusters by content are in
:mod:`graphattn.hugging_face.own_clusters`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._checks import check_kind
from graphattn.hugging_face.own_clusters import (
    InputClusters,
    LayerClusters,
    head_clusters,
    join_clusters,
)
from graphattn.patterns import EdgeList, Offsets, Pattern, parse
from graphattn.sources import ClusterKeys, HeadClusters
from graphattn.sources.head_clusters import read_clusters

__all__ = ['MAX_TOKENS', 'Candidate', 'Own', 'OwnEdges', 'OwnSums', 'candidate', 'is_found',
           'join_edges', 'pattern_of']

MAX_TOKENS = 4096  # of a sequence
KEPT, LEAST_KEPT = 4, 64  # keys of a row whose sums are kept: of each that is needed, and at least
_OWN = re.compile(r'\s*(\d+) own (keys|offsets)\s*(?:\|(.*))?')


class Own(NamedTuple):
    """Description of edges that are found for each head separately: the keys, or the offsets from
    query to key, that have the largest attention weights in the head.
    :func:`graphattn.hugging_face.fit` can choose them.

    Args:
        count (int): Number of keys of a query, itself included.
        kind (str): ``'keys'`` if each position of a sequence has its own keys; ``'offsets'`` if all
            positions have the same offsets.
        beside (Pattern, optional): Further edges, the same in all heads.
    """

    count: int
    kind: str
    beside: Pattern | None = None

    def __repr__(self) -> str:
        beside = '' if self.beside is None else f' | {self.beside!r}'
        return f'{self.count} own {self.kind}{beside}'


Candidate = Pattern | Own | ClusterKeys


def candidate(given: Pattern | str) -> Candidate:
    """Convert ``given`` to a pattern, or to another description of edges that a fit can choose for
    a head (candidate).

    Args:
        given (Pattern or str): A pattern, its expression, or a text such as ``'8 own keys'``,
            ``'4 own offsets | GlobalTokens(1)'`` or ``'8 keys of 32 clusters'``.

    Raises:
        TypeError, ValueError: It is none of these.
    """
    if isinstance(given, str):
        found = _OWN.fullmatch(given)
        if found is None:
            return read_clusters(given) or parse(given)
        count, kind, beside = found.groups()
        if not 1 <= int(count) <= MAX_TOKENS:
            raise ValueError(f"'patterns' must have from 1 to {MAX_TOKENS} own {kind} (got "
                             f"{given!r})")
        return Own(int(count), kind, None if beside is None else parse(beside))
    check_kind('patterns', given, Pattern)
    return given


def is_found(given: Candidate) -> bool:
    """Return whether a description of edges, such as ``'8 own keys'``, stands for edges that are
    found in the attention weights of each head. A pattern has the same edges in all heads."""
    return not isinstance(given, Pattern)


@dataclass(frozen=True)
class OwnEdges:
    """Edges that were found for each head of a layer.

    Args:
        keys (Tensor): Keys of each position: first the position itself, then the keys with the
            largest weights in descending order; -1 for none. int64 ``[heads, tokens, keys]``.
        offsets (Tensor): Offsets from a query to its keys: first 0, then those with the largest
            weights in descending order; again 0 for none. int64 ``[heads, offsets]``.
        clusters (dict): For each number of clusters, such as 32, a :class:`LayerClusters`, or an
            :class:`InputClusters` in a result of :meth:`on`.
    """

    keys: Tensor
    offsets: Tensor
    clusters: Mapping[int, LayerClusters | InputClusters] = field(default_factory=dict)

    def on(self, query: Tensor, key: Tensor) -> OwnEdges:
        """Return the edges for one input, after assigning its tokens to the clusters. ``query`` and
        ``key`` are ``[heads, length, channels]``."""
        return replace(self, clusters={count: clusters.on(query, key)
                                       for count, clusters in self.clusters.items()})

    def mask(self, own: Own | ClusterKeys, rows: Tensor, length: int) -> Tensor:
        """Return whether each of the queries ``rows`` attends to each key along the edges that were
        found for each head, bool ``[heads, rows, length]``. The edges of the pattern ``own.beside``
        do not count.

        Args:
            own (Own or ClusterKeys): The candidate.
            rows (Tensor): Indices of the queries, int64 ``[rows]``.
            length (int): Number of keys.
        """
        if isinstance(own, ClusterKeys):
            return self.clusters[own.clusters].mask(own.keys, rows)
        if own.kind == 'keys':
            key = self.keys[:, rows, :own.count]
        else:
            key = rows[:, None] + self.offsets[:, None, :own.count]
        is_edge = torch.zeros(*key.shape[:2], length + 1, dtype=torch.bool, device=key.device)
        outside = (key < 0) | (key >= length)
        return is_edge.scatter_(2, key.masked_fill(outside, length), True)[..., :length]


def pattern_of(given: str, fields: Mapping[str, np.ndarray], row: int) -> Pattern | HeadClusters:
    """Return the pattern that a description of edges stands for in one head, or the clusters if it
    has clusters.

    Args:
        given (str): The candidate, such as ``'8 own keys'``, as :func:`candidate` reads it.
        fields (dict): Fields of a profile by name, with the edges that were found.
        row (int): Index of the head among the heads of all layers.
    """
    own = candidate(given)
    if isinstance(own, Pattern):
        return own
    if isinstance(own, ClusterKeys):
        return head_clusters(own, fields, row)
    if own.kind == 'keys':
        chosen = fields['own_keys'][row, :, :own.count]
        query, column = np.nonzero(chosen >= 0)
        edges = torch.from_numpy(np.stack([chosen[query, column], query]).astype(np.int64))
        pattern: Pattern = EdgeList(len(chosen), edges)
    else:
        pattern = Offsets(tuple(sorted({*fields['own_offsets'][row, :own.count].tolist()})))
    return pattern if own.beside is None else pattern | own.beside


def join_edges(layers: Sequence[OwnEdges], num_heads: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the edges of all layers as fields of a :class:`Profile`, by name: ``own_keys``,
    ``own_offsets``, and the fields of the clusters such as ``cluster_query``.

    Args:
        layers (sequence of OwnEdges): Edges of each layer; empty if no candidate needs them.
        num_heads (sequence of int): Number of heads of each layer.
    """
    clusters = join_clusters([edges.clusters for edges in layers], num_heads)
    if not layers:
        return {'own_keys': np.zeros((sum(num_heads), 0, 0), np.int32),
                'own_offsets': np.zeros((sum(num_heads), 0), np.int32), **clusters}
    length = max(edges.keys.size(1) for edges in layers)
    keys = [F.pad(edges.keys, (0, 0, 0, length - edges.keys.size(1)), value=-1) for edges in layers]
    return {'own_keys': torch.cat(keys).cpu().numpy().astype(np.int32),
            'own_offsets': torch.cat([edges.offsets for edges in layers]).cpu().numpy().astype(
                np.int32), **clusters}


class OwnSums:
    """Sums of the attention weights of a layer, for each pair of positions and for each offset
    between positions.

    Memory is linear in the length of inputs, because each query keeps only its largest sums: four
    times as many as candidates have keys, and at least 64. A key that drops out loses its sum. So
    the sums of a query are exact if it has weight on no more keys than are kept.

    Args:
        candidates (sequence): Candidates of a fit, which say how many keys and offsets are needed.
    """

    def __init__(self, candidates: Sequence[Candidate]):
        most = {'keys': 0, 'offsets': 0}
        for own in candidates:
            if isinstance(own, Own):
                most[own.kind] = max(most[own.kind], own.count)
        self.num_keys, self.num_offsets = most['keys'], most['offsets']
        self.key: Tensor | None = None  # int64 [heads, rows, kept], -1 for none
        self.sum: Tensor | None = None  # float [heads, rows, kept]
        self.by_offset: Tensor | None = None  # double [heads, 2 * MAX_TOKENS - 1], 0 in the middle

    @property
    def length(self) -> int:
        """The number of tokens of the longest input so far, or 0 if no sums of keys are kept."""
        return 0 if self.key is None else self.key.size(1)

    @property
    def is_empty(self) -> bool:
        return self.by_offset is None

    def begin(self, query: Tensor, key: Tensor) -> None:
        """Do nothing, because the sums depend only on positions and attention weights."""

    def add(self, rows: Tensor, weight: Tensor) -> None:
        """Add the attention weights ``[heads, rows, length]`` of some queries of an input. ``rows``
        are the indices of these queries, int64 ``[rows]``."""
        heads, _, length = weight.shape
        if length > MAX_TOKENS and (self.num_keys or self.num_offsets):
            raise ValueError(f"'batches' must contain sequences of at most {MAX_TOKENS} tokens for "
                             f"own keys and offsets (got {length}); shorten the sequences, or "
                             f"leave own keys and offsets out of 'patterns'")
        tiny = torch.finfo(weight.dtype).tiny
        weight = weight.masked_fill(weight <= tiny, 0)  # a pair of no weight is no edge
        if self.by_offset is None:
            self.by_offset = weight.new_zeros(heads, 2 * MAX_TOKENS - 1, dtype=torch.double)
        if self.num_offsets:
            at = torch.arange(length, device=weight.device) - rows[:, None] + MAX_TOKENS - 1
            self.by_offset.scatter_add_(1, at.flatten().expand(heads, -1),
                                        weight.double().flatten(1))
        if self.num_keys:
            self._grow(heads, length, weight)
            self._keep(rows, F.pad(weight, (0, self.key.size(1) - length)))

    def _grow(self, heads: int, length: int, like: Tensor) -> None:
        kept = max(LEAST_KEPT, KEPT * self.num_keys)
        if self.key is None:
            self.key = like.new_empty(heads, 0, kept, dtype=torch.long)
            self.sum = like.new_empty(heads, 0, kept)
        more = 0, 0, 0, max(0, length - self.key.size(1))
        self.key, self.sum = F.pad(self.key, more, value=-1), F.pad(self.sum, more)

    def _keep(self, rows: Tensor, weight: Tensor) -> None:
        """Add the attention weights ``[heads, rows, length]`` of the queries ``rows``, and keep the
        largest sums of each query."""
        length, kept = weight.size(2), self.key.size(2)
        total = self.row_sums(rows, length) + weight
        largest, at = total.topk(min(kept, length), dim=2)
        fill = 0, kept - at.size(2)
        self.sum[:, rows] = F.pad(largest, fill)
        self.key[:, rows] = F.pad(at.masked_fill(largest <= 0, -1), fill, value=-1)

    def with_sums(self, other: OwnSums) -> OwnSums:
        """Add the sums of ``other`` to this object in place, and return this object."""
        if other.is_empty:
            return self
        self.by_offset = self.by_offset + other.by_offset
        if self.num_keys:
            heads, length, _ = other.key.shape
            self._grow(heads, length, other.sum)
            for rows in torch.arange(length, device=other.key.device).split(64):
                self._keep(rows, other.row_sums(rows, self.key.size(1)))
        return self

    def row_sums(self, rows: Tensor, length: int) -> Tensor:
        """Return the sums of the queries ``rows`` for the first ``length`` keys,
        ``[heads, rows, length]``. The sums of keys that are not kept are 0."""
        key = self.key[:, rows]
        total = self.sum.new_zeros(*key.shape[:2], length + 1)  # the last one is of no key
        return total.scatter_add_(2, key.masked_fill(key < 0, length), self.sum[:, rows])[..., :-1]

    def edges(self, length: int) -> OwnEdges:
        """Return the keys and offsets with the largest sums. Keys are listed for at least
        ``length`` positions. At positions that no input has, they are the keys just before the
        position."""
        heads = len(self.by_offset)
        return OwnEdges(self._keys(length) if self.num_keys else torch.empty(heads, 0, 0),
                        self._offsets() if self.num_offsets else torch.empty(heads, 0))

    def _keys(self, length: int) -> Tensor:
        self._grow(len(self.key), length, self.sum)
        query = torch.arange(self.key.size(1), device=self.key.device).view(1, -1, 1)
        others = self.sum.masked_fill(self.key == query, 0)
        largest, at = others.topk(self.num_keys - 1, dim=2)
        key = self.key.gather(2, at).masked_fill(largest <= 0, -1)
        before = (query - torch.arange(1, self.num_keys, device=key.device)).clamp(min=-1)
        key = torch.where((self.key < 0).all(2, keepdim=True), before, key)
        return torch.cat([query.expand(len(key), -1, 1), key], dim=2)

    def _offsets(self) -> Tensor:
        others = self.by_offset.clone()
        others[:, MAX_TOKENS - 1] = 0
        largest, at = others.topk(self.num_offsets - 1, dim=1)
        return F.pad((at - (MAX_TOKENS - 1)).masked_fill(largest <= 0, 0), (1, 0))
