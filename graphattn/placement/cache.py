"""Placements for decoding, in which keys and values of earlier tokens are cached by one process, or
by several, each of which caches some tokens.

A node is a token, or a token in one head if each head has its own graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.batching import used_keys
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.ops.edge_math import take_sink
from graphattn.placement.exchange import Exchange, Halo
from graphattn.placement.messages import all_gather
from graphattn.placement.overlap import joined


class Cache(Placement):
    """Placement of keys and values in the cache of a layer. The keys and values of new tokens are
    added to the cache.

    With several hops, the values after each hop are cached too. Edges are causal, so later tokens
    do not change these values.

    Args:
        heads (int, optional): Number of heads, if each head has its own graph; None if all heads
            share the graph.
        kept (Kept): The cached keys and values of the layer.
        place (Tensor): Index of each new token among the keys of the graph, int64 ``[num_new]``. If
            each head has its own graph, ``[heads * num_new]``, beginning with head 0.
        graph (BipartiteGraph): Edges from all keys to the new tokens.
    """

    has_all_values = False

    def __init__(self, heads: int | None, kept: Kept, place: Tensor, graph: BipartiteGraph):
        super().__init__(heads)
        self._kept, self._place, self._num_keys = kept, place, graph.num_keys
        self._used, self._near = used_keys(graph)

    def edges(self, graph: BipartiteGraph) -> BipartiteGraph:
        return self._near

    def keys(self, key: Tensor) -> Tensor:
        return self._among_kept('key', key)

    def values(self, value: Tensor, hop: int) -> Tensor:
        return self._among_kept(f'hop {hop}', value)

    def _among_kept(self, name: str, new: Tensor) -> Tensor:
        return self._kept.put(name, self._place, new, self._num_keys)[self._used]


class Kept:
    """Keys and values of one layer in a cache that grows."""

    def __init__(self, seen: list[int]):  # number of processed tokens of each sequence
        self.seen = seen
        self._tensors: dict[str, Tensor] = {}  # by name: 'key', 'hop 0', 'hop 1', ...

    def put(self, name: str, place: Tensor, new: Tensor, num_places: int) -> Tensor:
        """Write rows into the cached tensor ``name``, and return its first ``num_places`` rows."""
        # names: 'key', or 'hop 0', 'hop 1', ... for values; place: index of each new row, int64
        kept = self._tensors.get(name, new[:0])
        if kept.shape[1:] != new.shape[1:]:
            raise ValueError(f"'ptr' must belong to a cache with the [heads, channels] of the "
                             f"layer, {tuple(new.shape[1:])} (got {tuple(kept.shape[1:])}); create "
                             f"another KeyValueCache")
        if kept.dtype != new.dtype:
            raise TypeError(f"'ptr' must belong to a cache with the dtype of the layer, "
                            f"{new.dtype} (got {kept.dtype}); create another KeyValueCache")
        if len(kept) < num_places or name not in self._tensors:
            # What is created in inference mode is read-only outside of it, but later calls write.
            with torch.inference_mode(False):
                grown = kept.new_zeros(max(num_places, 2 * len(kept)), *kept.shape[1:])
            grown[:len(kept)] = kept
            kept = self._tensors[name] = grown
        kept[place] = new
        return kept[:num_places]


class DividedCache(Exchange):
    # With a part, every process computes all new queries, along the edges from the keys in its own
    # cache, and all outputs are merged: one output per query and head is sent, regardless of the
    # number of edges. This needs a single hop and a backend that can attend to a part of the keys;
    # otherwise, keys and values are exchanged.
    def __init__(self, heads: int | None, halo: Halo, group: dist.ProcessGroup, kept: Kept,
                 new: NewRows, part: Part | None):
        super().__init__(heads, halo, group)
        self._kept, self._new, self._part = kept, new, part

    @property
    def in_parts(self) -> bool:
        return self._part is not None

    def keys(self, key: Tensor) -> Tensor:
        return super().keys(self._put('key', key))

    def values(self, value: Tensor, hop: int) -> Tensor:
        return super().values(self._put(f'hop {hop}', value), hop)

    def pairs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return super().pairs(self._put('key', key), self._put('hop 0', value))

    def attend(self, kernel: Backend, query: Tensor, key: Tensor, value: Tensor,
               terms: LogitTerms) -> Tensor:
        graph, own, is_in = self._part
        bias, gate = (x if x is None else x[is_in] for x in (terms.bias, terms.gate))
        key, value = self._put('key', key), self._put('hop 0', value)
        if own is not None:  # kernels would take time for keys without edges too
            key, value = key.index_select(0, own), value.index_select(0, own)
        out, max_inv_sum = kernel.attention_part(
            query, key, value, graph, terms._replace(bias=bias, gate=gate, sink=None), None)
        parts = all_gather(torch.cat([out, max_inv_sum], dim=-1), self._group)
        outs, max_inv_sums = parts.split([out.size(-1), 2], dim=-1)
        share, max_inv_sum = joined(max_inv_sums)
        out = (share * outs).sum(0)
        take_sink(terms.sink, max_inv_sum, out)
        return out.to(query.dtype)

    def _put(self, name: str, x: Tensor) -> Tensor:
        new = self._new
        return self._kept.put(name, new.place, x.index_select(0, new.rows), new.num_places)


class NewRows(NamedTuple):
    """Rows of new keys and values that a process caches, and their places in its cache."""

    rows: Tensor  # indices of these nodes among the new nodes of the call, int64
    place: Tensor  # their places in the cache of this process, int64
    num_places: int  # number of nodes in this cache afterwards


class Part(NamedTuple):
    """The edges that start from the keys in the cache of one process."""

    graph: BipartiteGraph  # from those nodes of this cache that have edges to all new queries
    own: Tensor | None  # places of these nodes, int64; None if they are the whole cache in order
    is_in: Tensor  # bool [edges of the whole graph]: whether the edge is in this part
