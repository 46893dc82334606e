"""Decoding, in which new tokens attend to cached keys and values."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from graphattn._checks import check_integers, check_ptr, check_sides
from graphattn._tensors import host_copy
from graphattn.functional.recursion import is_one_hop
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import segment_of
from graphattn.placement.cache import Cache, Kept
from graphattn.shard import Shard, check_edges

__all__ = ['KeyValueCache']


class KeyValueCache:
    """A cache of the keys and values of all tokens that each layer of a model has processed.

    In each call of a model, pass the next tokens, and ``cache.step(ptr)`` instead of ``ptr``.
    Layers, encoders and models then return the same outputs as for whole sequences, in time
    proportional to the number of edges of the new queries. The graph must be causal, and is always
    the graph of sequences of ``length`` tokens. With several hops, the values after each hop are
    cached too, because later tokens do not change them if edges are causal. If a layer runs twice
    in one pass, each run has its own cache.

    Args:
        length (int): Final number of tokens of a sequence, and the size of the cache.
        num_sequences (int): Number of sequences that are decoded in parallel.

    Raises:
        TypeError: An argument is not an int.
        ValueError: An argument is below 1.

    Example:
        >>> import torch
        >>> from graphattn.decoding import KeyValueCache
        >>> from graphattn.layers import GraphAttention
        >>> from graphattn.sources import PatternSource
        >>> attention = GraphAttention(8, 2, PatternSource('SlidingWindow(2) & Causal()'))
        >>> x, cache = torch.randn(6, 8), KeyValueCache(6)
        >>> with torch.no_grad():
        ...     whole = attention(x, torch.tensor([0, 6]))
        ...     tokens = [attention(token, cache.step(torch.tensor([0, 1])))
        ...               for token in x.split(1)]
        >>> torch.allclose(torch.cat(tokens), whole, atol=1e-6)
        True
    """

    def __init__(self, length: int, num_sequences: int = 1):
        check_sides(length=length, num_sequences=num_sequences)
        self.length = length
        self.seen = [0] * num_sequences  # number of tokens of each sequence
        # For each layer, a list with an entry for each run of the layer in a pass.
        self._kept = WeakIdKeyDictionary()

    def step(self, ptr: Tensor) -> Shard:
        """Return the ``ptr`` for the next call of a model. Use each result only once.

        The new tokens are in the cache as soon as the first layer has computed its attention. A
        call that fails earlier can be repeated. If a call fails between two layers, the layers have
        different tokens in their caches, and the next call raises an error.

        Args:
            ptr (Tensor): Where the new tokens of each sequence begin, int64
                ``[num_sequences + 1]``.

        Raises:
            TypeError: ``ptr`` is not an int64 Tensor.
            ValueError: ``ptr`` marks another number of sequences, or a sequence would get more
                tokens than ``length``.
        """
        check_integers('ptr', ptr)
        check_ptr('ptr', ptr, None, ptr.device)
        if ptr.numel() != len(self.seen) + 1:
            raise ValueError(f"'ptr' must mark the {len(self.seen)} sequences of the cache (got "
                             f"{ptr.numel() - 1})")
        counts = host_copy(ptr).diff().tolist()
        spans = [(seen, seen + count) for seen, count in zip(self.seen, counts)]
        if max(end for _, end in spans) > self.length:
            raise ValueError(f"'ptr' must not make a sequence longer than the {self.length} tokens "
                             f"of the cache (got {max(end for _, end in spans)}); create a longer "
                             f"KeyValueCache")
        return _Step(self, ptr, spans)

    def of(self, layer: nn.Module, run: int) -> Kept:
        """Return the cache of ``layer`` for run number ``run`` of this layer in a pass."""
        runs = self._kept.setdefault(layer, [])
        if run == len(runs):
            runs.append(Kept([0] * len(self.seen)))
        return runs[run]


class _Step(Shard):
    """Shard of the new tokens of sequences that will have ``length`` tokens."""

    def __init__(self, cache: KeyValueCache, ptr: Tensor, spans: list[tuple[int, int]]):
        self._cache, self._spans, self.own_ptr = cache, spans, ptr
        self._runs: Counter[nn.Module] = Counter()  # number of runs of each layer with these tokens
        self.ptr = cache.length * torch.arange(len(spans) + 1, device=ptr.device)
        self.lengths = [cache.length] * len(spans)
        self.num_tokens = cache.length * len(spans)
        self.start, self.stop = 0, sum(end - begin for begin, end in spans)

    def spans(self) -> list[tuple[int, int]]:
        return self._spans

    def positions(self) -> Tensor:
        begin = torch.tensor([begin for begin, _ in self._spans], device=self.ptr.device)
        token = torch.arange(self.num_own, device=self.ptr.device)
        segment = segment_of(self.own_ptr, self.num_own)
        return token - self.own_ptr[segment] + begin[segment]

    def gather(self, x: Tensor) -> Tensor:
        raise NotImplementedError("'source' must have edges that do not depend on tokens for "
                                  "decoding; use a PatternSource")

    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        check_edges(graph)
        for times in (1, heads):
            if (graph.num_queries, graph.num_keys) == (times * self.num_own,
                                                       times * self.num_tokens):
                return
        raise ValueError(f"'graph' must have the {self.num_own} new tokens as queries and "
                         f"{self.num_tokens} keys, once for all heads or once for each head (got "
                         f"{graph})")

    def place(self, attention: nn.Module, key: Tensor, graph: BipartiteGraph, heads: int | None,
              teleport: Tensor | None) -> Cache:
        if torch.is_grad_enabled() and key.requires_grad:
            raise ValueError("'ptr' must not belong to a cache if gradients are needed, because a "
                             "KeyValueCache does not support gradients; decode inside "
                             "torch.no_grad()")
        teleport = attention.teleport if teleport is None else teleport
        if attention.hops == math.inf:
            raise ValueError("'hops' must be finite for decoding, because the values after each "
                             "hop are cached (got inf)")
        if attention.training and attention.dropout and not is_one_hop(attention.hops, teleport):
            raise ValueError("'dropout' must be off for decoding with several hops, because "
                             "dropout must drop the same weights in each hop; call eval() of the "
                             "model first")
        place = self.positions() + self.ptr[segment_of(self.own_ptr, self.num_own)]
        fold = torch.arange(heads or 1, device=place.device).unsqueeze(1)
        place = (place + self.num_tokens * fold).flatten()
        if bool((graph.key > place[graph.query]).any()):
            raise ValueError("'source' must be causal for decoding (got edges from later tokens); "
                             "'& Causal()' makes a pattern causal")
        return Cache(heads, self._memory(attention), place, graph)

    def attended(self, attention: nn.Module) -> None:
        memory = self._memory(attention)
        self._runs[attention] += 1
        memory.seen = self._cache.seen = [end for _, end in self._spans]

    def _memory(self, attention: nn.Module) -> Kept:
        """Return the cache of the layer. Raise an error unless its tokens end where the new tokens
        begin."""
        memory = self._cache.of(attention, self._runs[attention])
        begin = [begin for begin, _ in self._spans]
        if memory.seen != begin:
            raise ValueError(f"'ptr' must continue after the tokens in the cache of the layer, "
                             f"{memory.seen} tokens per sequence (got a step after {begin} tokens "
                             f"per sequence); create one KeyValueCache for each model, and use "
                             f"each step for one pass through all layers")
        return memory
