"""Placement for decoding: cached keys and values, to which new tokens add theirs."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph


class Cache(Placement):
    """Keys and values in a layer's cache, with those of the new tokens.

    The values after each hop are cached too, because later tokens do not change them along causal
    edges.

    Args:
        heads (int, optional): Number of heads that own a graph; all share one if omitted.
        kept (Kept): The cache of the layer.
        place (Tensor): Index of each new node among the keys, int64.
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
    """Cached keys and values of one layer.

    Args:
        seen (list of int): Number of tokens of each sequence that the layer has seen.
    """

    def __init__(self, seen: list[int]):
        self.seen = seen
        self._tensors: dict[str, Tensor] = {}  # rows of all heads and sequences, by name

    def put(self, name: str, place: Tensor, new: Tensor, num_places: int) -> Tensor:
        """Store new rows under a name and return all, ``[num_places, heads, channels]``."""
        if name not in self._tensors:
            with torch.inference_mode(False):  # later calls may write outside of it
                self._tensors[name] = new.new_zeros(num_places, *new.shape[1:])
        kept = self._tensors[name]
        if kept.shape != (num_places, *new.shape[1:]):
            raise ValueError(f"'ptr' belongs to a cache of shape [..., heads, channels] = "
                             f"{tuple(kept.shape[1:])} (got {tuple(new.shape[1:])}); create "
                             f"another KeyValueCache")
        if kept.dtype != new.dtype:
            raise TypeError(f"'ptr' belongs to a cache in {kept.dtype} (got {new.dtype}); create "
                            f"another KeyValueCache")
        kept[place] = new
        return kept
