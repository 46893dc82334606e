"""Placement in padded sequences. A slot of a padded sequence contains a token or padding, and
graphs contain only the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from graphattn.functional.drive import Placement, Teleport
from graphattn.graphs.batching import used_keys
from graphattn.graphs.graph import BipartiteGraph


class Padded(Placement):
    """Placement of keys and values in padded tensors ``[batch, num_keys, num_kv_heads, channels]``.
    The output is padded too.

    If there is only one hop, and fewer edges than keys, then only keys with edges are read. This
    saves time when a single new query attends to a long cache.

    Args:
        tokens (PaddedTokens): The slots that contain tokens.
        graph (BipartiteGraph): Edges between tokens, as in :meth:`PaddedTokens.place`.
        heads (int, optional): Number of heads, if each head has its own graph; None if all heads
            share the graph.
        hops_end (bool): Whether there is only one hop.
    """

    def __init__(self, tokens: PaddedTokens, graph: BipartiteGraph, heads: int | None,
                 hops_end: bool):
        super().__init__(heads)
        self.tokens, self.graph, self._take = tokens, tokens.drop_evicted(graph), tokens.keys
        if heads is None and hops_end and self.graph.num_edges < self.graph.num_keys:
            used, self.graph = used_keys(self.graph)
            slots = tokens.key_slots(used)
            self._take = lambda x: x[slots]

    def fold(self, query: Tensor, key: Tensor, value: Tensor,
             teleport: Teleport) -> tuple[Tensor, Tensor, Tensor, Teleport]:
        return super().fold(query, self._take(key), self._take(value), teleport)

    def put(self, out: Tensor) -> Tensor:
        return self.tokens.pad_queries(super().put(out))


@dataclass(frozen=True, eq=False)
class PaddedTokens:
    """Positions of the tokens in padded queries and keys, with padding on either side."""

    # A position is the index of a slot among the keys of a sequence, counted from the first key
    # even if a cache has dropped it.
    batch: int
    num_queries: int  # slots of each sequence
    num_keys: int
    device: torch.device
    is_token: Tensor | None = None  # bool [batch, positions]; None: all
    first_query: int = 0  # position
    first_key: int = 0
    # Whether query and key at one position are the same token. Otherwise all queries are tokens,
    # and is_token describes the keys only.
    same_tokens: bool = True
    # Lengths, if a row of the batch contains several sequences, one after the other. Then every
    # slot has a token, and queries and keys are the same tokens.
    packed: tuple[int, ...] | None = None

    @cached_property
    def _token(self) -> tuple[Tensor, Tensor] | None:
        # sequence and position of each token; None if every slot has a token
        behind = self._behind
        if self.is_token is None and self.first_key + self.num_keys == behind:
            return None
        is_token = self.is_token
        if is_token is None:  # a cache has not filled the later slots yet
            is_token = torch.ones(self.batch, behind, dtype=torch.bool, device=self.device)
        return is_token[:, :behind].nonzero().unbind(1)

    @property
    def _behind(self) -> int:
        # the position after the last key that a query may attend to
        last_key = self.first_key + self.num_keys
        return min(self.first_query + self.num_queries, last_key) if self.same_tokens else last_key

    @cached_property
    def lengths(self) -> list[int]:
        """Number of keys of each sequence, including keys that a cache no longer stores."""
        return self._before(self._behind) if self.packed is None else [*self.packed]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Begin and end of the queries of each sequence among its keys, without padding."""
        if self.packed is not None:
            return [(0, length) for length in self.packed]
        if not self.same_tokens:
            return [(0, self.num_queries)] * self.batch
        return [(first, length) for first, length in zip(self._before(self.first_query),
                                                         self.lengths)]

    def _before(self, position: int) -> list[int]:
        if self._token is None:
            return [position] * self.batch
        position = min(position, self._behind)
        if self.is_token is None or position == 0:
            return [position] * self.batch
        return self.is_token[:, :position].sum(dim=1).tolist()

    @property
    def is_square(self) -> bool:
        return self.same_tokens and self.first_query == self.first_key == 0

    @cached_property
    def ptr(self) -> Tensor:
        return torch.tensor([*accumulate(self.lengths, initial=0)], device=self.device)

    @property
    def query_ptr(self) -> Tensor:
        counts = [last - first for first, last in self.spans]
        return torch.tensor([*accumulate(counts, initial=0)], device=self.device)

    @property
    def first_queries(self) -> Tensor:
        """Return the number of keys before the first query of each sequence, int64 ``[batch]``."""
        return torch.tensor([first for first, _ in self.spans], device=self.device)

    def queries(self, x: Tensor) -> Tensor:
        return _take(x, self._query_slot)

    def keys(self, x: Tensor) -> Tensor:
        return _take(x, self._key_slot)

    def key_slots(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sequence and the slot of keys, counted as :meth:`keys` returns them."""
        slot = key if self._key_slot is None else self._key_slot[key]
        return slot // self.num_keys, slot % self.num_keys

    def pad_queries(self, x: Tensor) -> Tensor:
        if self._query_slot is not None:
            padded = x.new_zeros(self.batch * self.num_queries, *x.shape[1:])
            x = padded.index_copy(0, self._query_slot, x)
        return x.unflatten(0, (self.batch, self.num_queries))

    @cached_property
    def _query_slot(self) -> Tensor | None:
        if self._token is None or not self.same_tokens:
            return None
        sequence, position = self._tokens_from(self.first_query)
        return sequence * self.num_queries + position - self.first_query

    @cached_property
    def _key_slot(self) -> Tensor | None:
        if self._token is None:
            return None
        sequence, position = self._tokens_from(self.first_key)
        return sequence * self.num_keys + position - self.first_key

    def _tokens_from(self, first: int) -> tuple[Tensor, Tensor]:
        if first == 0:
            return self._token
        is_behind = self._token[1] >= first
        return tuple(part[is_behind] for part in self._token)

    def place(self, graph: BipartiteGraph) -> EdgePlaces:
        """Return the sequence, the head and the positions of query and key of each edge of a
        graph."""
        # One segment per sequence, or per head and sequence; the graph's keys include evicted ones.
        query_slot = torch.arange(self.batch * self.num_queries, device=self.device)
        query_slot = query_slot if self._query_slot is None else self._query_slot
        if self._token is None:
            key_position = torch.arange(self._behind, device=self.device).repeat(self.batch)
        else:
            key_position = self._token[1]
        query, is_shared = graph.query, graph.num_queries == len(query_slot)
        head = None if is_shared else query // len(query_slot)
        slot = query_slot[query % len(query_slot)]
        return EdgePlaces(slot // self.num_queries, head,
                          slot % self.num_queries + self.first_query,
                          key_position[graph.key % len(key_position)])

    def drop_evicted(self, graph: BipartiteGraph) -> BipartiteGraph:
        """Return the graph without keys that a cache no longer stores, which must have no edges."""
        if self.first_key == 0:
            return graph
        evicted = torch.tensor(self._before(self.first_key), device=self.device)
        times = graph.num_segments // self.batch
        shift = evicted.repeat(times).cumsum(0)
        key_ptr = graph.key_ptr
        segment = torch.bucketize(graph.key, key_ptr, right=True) - 1
        key_ptr[1:] -= shift
        return BipartiteGraph.from_csr(graph.indptr, graph.key - shift[segment], int(key_ptr[-1]),
                                       query_ptr=graph.query_ptr, key_ptr=key_ptr, validate=False)


class EdgePlaces(NamedTuple):
    """Places of edges in a padded batch. Each field is int64 ``[num_edges]``."""

    sequence: Tensor
    head: Tensor | None  # None if all heads share the edges
    query: Tensor  # position of the query
    key: Tensor  # position of the key


def _take(x: Tensor, slot: Tensor | None) -> Tensor:
    x = x.flatten(0, 1)
    return x if slot is None else x[slot]
