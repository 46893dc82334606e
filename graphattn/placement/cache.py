"""Keys and values of tokens that have been seen, among which the new ones are put."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn.functional.drive import Placement
from graphattn.graphs.graph import BipartiteGraph


class Cache(Placement):
    """Keys and values that a layer keeps, and the new tokens among them; with the values after each
    hop, which do not change along causal edges.

    Args:
        heads (int, optional): How many heads own a graph each; all share one if omitted.
        kept (Kept): What the layer keeps.
        place (Tensor): Of each new node among the keys, int64.
        graph (BipartiteGraph): Of the new tokens and all keys.
    """

    has_all_values = False

    def __init__(self, heads: int | None, kept: Kept, place: Tensor, graph: BipartiteGraph):
        super().__init__(heads)
        self._kept, self._place, self._num_keys = kept, place, graph.num_keys
        self._used, edge_key = graph.key.unique(return_inverse=True)
        self._near = BipartiteGraph.from_csr(graph.csr[0], edge_key, self._used.numel(),
                                             validate=False)

    def keys(self, key: Tensor, graph: BipartiteGraph) -> tuple[Tensor, BipartiteGraph]:
        return self._among_kept('key', key), self._near

    def values(self, value: Tensor, hop: int) -> Tensor:
        return self._among_kept(f'hop {hop}', value)

    def _among_kept(self, name: str, new: Tensor) -> Tensor:
        return self._kept.put(name, self._place, new, self._num_keys)[self._used]


class Kept:
    """Keys and values that one layer keeps of the sequences.

    Args:
        seen (list of int): Tokens of each that it has seen.
    """

    def __init__(self, seen: list[int]):
        self.seen = seen
        self._tensors: dict[str, Tensor] = {}  # of heads and sequences side by side

    def put(self, name: str, place: Tensor, new: Tensor, num_places: int) -> Tensor:
        """Store new rows under a name, and return all of them, ``[num_places, heads,
        channels]``."""
        if name not in self._tensors:
            with torch.inference_mode(False):  # for others may write into it later
                self._tensors[name] = new.new_zeros(num_places, *new.shape[1:])
        kept = self._tensors[name]
        if kept.shape != (num_places, *new.shape[1:]):
            raise ValueError(f"'ptr' is of a cache for other heads: {tuple(kept.shape[1:])} (got "
                             f"{tuple(new.shape[1:])})")
        if kept.dtype != new.dtype:
            raise TypeError(f"'ptr' is of a cache in {kept.dtype} (got {new.dtype}); begin with a "
                            f"KeyValueCache of its own")
        kept[place] = new
        return kept
