"""Shards whose processes are threads, and what their graphs must be."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.functional.shard import Shard


class ThreadShard(Shard):
    """One of several, each in a thread of its own."""

    def __init__(self, ptr: Tensor, bounds: list[int], rank: int, parts: dict, barrier: Barrier):
        super().__init__(ptr, bounds[rank], bounds[rank + 1])
        self.rank, self.parts, self.barrier = rank, parts, barrier

    def gather(self, x: Tensor) -> Tensor:
        self.parts[self.rank] = x
        self.barrier.wait(timeout=600)
        everything = torch.cat([self.parts[rank] for rank in range(len(self.parts))])
        self.barrier.wait(timeout=600)
        return everything

    def check_graph(self, graph, heads):
        raise NotImplementedError

    def place(self, layer, key, graph, heads, **options):
        raise NotImplementedError


def in_threads(run: Callable[[Shard], BipartiteGraph], ptr: Tensor,
               bounds: list[int]) -> list[BipartiteGraph]:
    """Return the result of ``run`` for each of the shards between ``bounds``."""
    size, parts = len(bounds) - 1, {}
    barrier = Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(run, [ThreadShard(ptr, bounds, rank, parts, barrier)
                                for rank in range(size)])]


def same_rows(whole: BipartiteGraph, rows: BipartiteGraph, num_tokens: int, own: slice) -> bool:
    """Return whether ``rows`` are those of own tokens, for heads that own a graph or share one."""
    times = whole.num_queries // num_tokens
    query = torch.cat([torch.arange(own.start, own.stop) + head * num_tokens
                       for head in range(times)])
    return (rows.num_keys == whole.num_keys and torch.equal(rows.key_ptr, whole.key_ptr)
            and torch.equal(rows.validate().to_mask(), whole.to_mask()[query]))
