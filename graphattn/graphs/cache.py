"""The graphs that were used last, each of them once in the whole process."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from threading import RLock
from typing import TypeVar

from torch import Tensor

from graphattn._tensors import index_dtype, outside_transforms
from graphattn.graphs.graph import BipartiteGraph

Kept = TypeVar('Kept', BipartiteGraph, tuple)


class GraphCache:
    """The graphs that were used last, up to a number of bytes.

    Any number of threads may ask; one at a time is answered, so no graph is built twice.

    Args:
        max_bytes (int): What all graphs may hold, the order by key included, which training asks
            them for, and their keys, for masks are large. What alone holds more is not kept.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.start_anew()

    def start_anew(self) -> None:
        """Empty the cache and release its lock. A forked process begins so, because the thread that
        held the lock does not exist there."""
        self._lock = RLock()  # the graph of a batch asks for those of its sequences
        self._kept: OrderedDict[Hashable, tuple[Kept, int]] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: Hashable | None, build: Callable[[], Kept]) -> Kept:
        """Return the value cached under ``key``, a graph or a tuple of one and of tensors, or cache
        the result of ``build``.

        Args:
            key (hashable, optional): All that the graph depends on (:func:`is_value`). With
                ``None`` the graph is built and not kept.
            build (callable): Called without arguments, outside of inference mode and of function
                transforms (``torch.func``), for others may train with the graph later.
        """
        if key is None:
            with outside_transforms():
                return build()
        with self._lock:
            if key not in self._kept:
                with outside_transforms():
                    graph = build()
                self._keep(key, graph)
                return graph
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _keep(self, key: Hashable, graph: Kept) -> None:
        num_bytes = bytes_in_use(graph) + bytes_of_key(key)
        if num_bytes > self.max_bytes:
            return
        self._kept[key] = graph, num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self.max_bytes:
            _, (_, num_bytes) = self._kept.popitem(last=False)
            self._num_bytes -= num_bytes

    def drop(self, is_dead: Callable[[Hashable], bool]) -> None:
        """Drop graphs that no call can ask for again."""
        with self._lock:
            for key in list(filter(is_dead, self._kept)):
                _, num_bytes = self._kept.pop(key)
                self._num_bytes -= num_bytes

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept.clear()
            self._num_bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that graphs and keys hold, the order by key included."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._kept)


def bytes_in_use(kept: BipartiteGraph | Tensor | tuple | None) -> int:
    """Return bytes of what is kept; of a new graph once training has asked for its order by key:
    another pointer, and the query and the position of each edge."""
    if isinstance(kept, tuple):
        return sum(map(bytes_in_use, kept))
    if not isinstance(kept, BipartiteGraph):
        return 0 if kept is None else kept.nbytes
    position = 4 if kept.num_edges < 2**31 else 8
    of_edge = index_dtype(kept.num_queries).itemsize + position
    return kept.nbytes + 8 * (kept.num_keys + 1) + of_edge * kept.num_edges


def bytes_of_key(thing: object) -> int:
    """Return bytes of the numbers and the text that a key is made of."""
    if isinstance(thing, str | int):
        return len(thing) if isinstance(thing, str) else 8
    if isinstance(thing, tuple):
        return sum(map(bytes_of_key, thing))
    if is_dataclass(thing):
        return sum(bytes_of_key(getattr(thing, field.name)) for field in fields(thing))
    return 8


def is_value(thing: object) -> bool:
    """Return whether ``thing`` never changes and equals whatever was made in the same way, so that
    a cached answer stays right: numbers, text, and tuples and frozen dataclasses of such."""
    if isinstance(thing, tuple):
        return all(map(is_value, thing))
    made = vars(type(thing)).get('__dataclass_params__')  # not that of a class it inherits from
    if made is not None:
        return made.frozen and made.eq and all(
            field.compare and is_value(getattr(thing, field.name)) for field in fields(thing))
    return thing is None or isinstance(thing, bool | int | float | str)


# Six layers of a model share one entry, so this is room for about 15 batches of 32,768 tokens with
# 64 neighbours each, at 8 bytes an edge; of lengths that recur, all that a model sees.
GRAPHS = GraphCache(2**28)
if hasattr(os, 'register_at_fork'):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=GRAPHS.start_anew)
