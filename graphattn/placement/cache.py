"""Placement for decoding, in which keys and values of earlier tokens are cached."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph


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
        self._used, edge_key = graph.key.unique(return_inverse=True)
        self._near = BipartiteGraph.from_csr(graph.csr[0], edge_key, self._used.numel(),
                                             validate=False)

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
        kept = self._tensors.get(name)
        if kept is None:
            kept = self._tensors[name] = _zeros(num_places, new)
        if kept.shape[1:] != new.shape[1:]:
            raise ValueError(f"'ptr' must belong to a cache with the [heads, channels] of the "
                             f"layer, {tuple(new.shape[1:])} (got {tuple(kept.shape[1:])}); create "
                             f"another KeyValueCache")
        if kept.dtype != new.dtype:
            raise TypeError(f"'ptr' must belong to a cache with the dtype of the layer, "
                            f"{new.dtype} (got {kept.dtype}); create another KeyValueCache")
        if len(kept) < num_places:
            kept = self._tensors[name] = _grown(kept, max(num_places, 2 * len(kept)))
        kept[place] = new
        return kept[:num_places]


def _zeros(num_rows: int, like: Tensor) -> Tensor:
    # A tensor that is created in inference mode is read-only outside of it, but later calls write.
    with torch.inference_mode(False):
        return like.new_zeros(num_rows, *like.shape[1:])


def _grown(x: Tensor, num_rows: int) -> Tensor:
    grown = _zeros(num_rows, x)
    grown[:len(x)] = x
    return grown
