"""A process-wide cache of graphs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from threading import RLock
from typing import TypeVar

from torch import Tensor

from graphattn._tensors import index_dtype, outside_transforms
from graphattn.graphs.graph import BipartiteGraph

Value = TypeVar('Value', BipartiteGraph, tuple)


class Name(str):
    """Unique name of an object: its deletion removes the values whose cache keys contain the
    name."""


class GraphCache:
    """A least-recently-used cache of graphs, limited in bytes, for several threads at once."""

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.start_anew()

    def start_anew(self) -> None:
        """Empty the cache and replace its lock, in a forked process."""
        # The thread that held the lock does not exist in a forked process.
        self._lock = RLock()  # reentrant, because building a batch calls get for its sequences
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._keys_of: dict[Name, set[Hashable]] = {}
        self._num_bytes = 0

    def get(self, key: Hashable | None, build: Callable[[], Value]) -> Value:
        """Return the value cached under ``key``; if there is none, ``build`` it and cache the
        result."""
        # The key must hold everything that the value depends on (is_value); None: not cached.
        if key is None:
            with outside_transforms():
                return build()
        # Later callers may train with the graph, so it is built outside of transforms. The lock is
        # held, so that no graph is built twice.
        with self._lock:
            if key not in self._kept:
                with outside_transforms():
                    graph = build()
                self._keep(key, graph)
                return graph
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _keep(self, key: Hashable, graph: Value) -> None:
        num_bytes = bytes_in_use(graph) + bytes_of_key(key)
        if num_bytes > self.max_bytes:
            return
        self._kept[key] = graph, num_bytes
        self._num_bytes += num_bytes
        for name in _names(key):
            self._keys_of.setdefault(name, set()).add(key)
        while self._num_bytes > self.max_bytes:
            self._remove(next(iter(self._kept)))

    def _remove(self, key: Hashable) -> None:
        _, num_bytes = self._kept.pop(key)
        self._num_bytes -= num_bytes
        for name in _names(key):
            self._keys_of[name].remove(key)
            if not self._keys_of[name]:
                del self._keys_of[name]

    def drop(self, names: Iterable[Name]) -> None:
        """Drop all cached values whose keys contain one of ``names``."""
        with self._lock:
            for name in names:
                for key in list(self._keys_of.get(name, ())):
                    self._remove(key)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._keys_of.clear()
            self._num_bytes = 0

    @property
    def nbytes(self) -> int:
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._kept)


def _names(key: Hashable) -> set[Name]:
    return {part for part in key if isinstance(part, Name)} if isinstance(key, tuple) else set()


def bytes_in_use(kept: BipartiteGraph | Tensor | tuple | None) -> int:
    if isinstance(kept, tuple):
        return sum(map(bytes_in_use, kept))
    if not isinstance(kept, BipartiteGraph):
        return 0 if kept is None else kept.nbytes
    if kept._csc is not None:  # counted by nbytes
        return kept.nbytes
    # Training adds the edges sorted by key (csc) later.
    position = 4 if kept.num_edges < 2**31 else 8
    of_edge = index_dtype(kept.num_queries).itemsize + position
    return kept.nbytes + 8 * (kept.num_keys + 1) + of_edge * kept.num_edges


def bytes_of_key(thing: object) -> int:
    """Return the number of bytes of all numbers and strings in a cache key."""
    if isinstance(thing, str | int):
        return len(thing) if isinstance(thing, str) else 8
    if isinstance(thing, tuple):
        return sum(map(bytes_of_key, thing))
    if is_dataclass(thing):
        return sum(bytes_of_key(getattr(thing, field.name)) for field in fields(thing))
    return 8


def is_value(thing: object) -> bool:
    """Return whether ``thing`` is immutable and compared by value, as a key of the cache must
    be."""
    if isinstance(thing, tuple):
        return all(map(is_value, thing))
    made = vars(type(thing)).get('__dataclass_params__')  # not inherited
    if made is not None:
        return made.frozen and made.eq and all(
            field.compare and is_value(getattr(thing, field.name)) for field in fields(thing))
    return thing is None or isinstance(thing, bool | int | float | str)


# At 8 bytes per edge, the cache has room for about 15 batches of 32,768 tokens with 64 neighbours
# each. All layers of a model share the graph of a batch. If lengths recur, the cache covers all
# batches.
GRAPHS = GraphCache(2**28)
if hasattr(os, 'register_at_fork'):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=GRAPHS.start_anew)
