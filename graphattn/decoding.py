"""Sequences that grow: each new token attends to keys and values that are kept."""

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
    """Keys and values of the tokens that a model has seen, for each of its layers.

    ``cache.step(ptr)`` stands in the place of ``ptr`` for the tokens that come next: layers,
    encoders and models then give what they give for the whole sequences, in time that follows the
    edges of the new queries. The graph must be causal, and is that of sequences of ``length``
    tokens, however many there are so far. With several hops the values after each of them are kept
    too, for along causal edges they do not change either. A layer that a model runs twice in one
    pass keeps what it has seen for each of the two.

    Args:
        length (int): Tokens that a sequence has when it is whole; there is room for as many.
        num_sequences (int): Sequences that are decoded side by side.

    Raises:
        TypeError: An argument is not an int.
        ValueError: One is below 1.

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
        self.seen = [0] * num_sequences  # tokens of each sequence
        self._kept = WeakIdKeyDictionary()  # by layer, of each run in a pass

    def step(self, ptr: Tensor) -> Shard:
        """Return the ``ptr`` for the next call of a model, and for no other.

        The tokens count as seen once they have passed the first attention. A call that fails before
        may be made again; after one that fails between two, layers have not all seen the same, and
        refuse what comes next.

        Args:
            ptr (Tensor): Where the new tokens of each sequence begin, int64
                ``[num_sequences + 1]``.

        Raises:
            TypeError: ``ptr`` is not an int64 Tensor.
            ValueError: It marks another number of sequences, or a sequence would have more tokens
                than ``length``.
        """
        check_integers('ptr', ptr)
        check_ptr('ptr', ptr, None, ptr.device)
        if ptr.numel() != len(self.seen) + 1:
            raise ValueError(f"'ptr' must mark the {len(self.seen)} sequences of the cache (got "
                             f"{ptr.numel() - 1})")
        counts = host_copy(ptr).diff().tolist()
        spans = [(seen, seen + count) for seen, count in zip(self.seen, counts)]
        if max(end for _, end in spans) > self.length:
            raise ValueError(f"'ptr' must leave sequences within the {self.length} tokens of the "
                             f"cache (got {max(end for _, end in spans)})")
        return _Step(self, ptr, spans)

    def of(self, layer: nn.Module, run: int) -> Kept:
        """Return the keys and values of a layer that a pass has run so often before."""
        runs = self._kept.setdefault(layer, [])
        if run == len(runs):
            runs.append(Kept([0] * len(self.seen)))
        return runs[run]


class _Step(Shard):
    """The new tokens of sequences that are ``length`` tokens long when they are whole."""

    def __init__(self, cache: KeyValueCache, ptr: Tensor, spans: list[tuple[int, int]]):
        self._cache, self._spans, self.own_ptr = cache, spans, ptr
        self._runs: Counter[nn.Module] = Counter()  # of each layer, with these tokens
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
        raise NotImplementedError("'source' must have edges that do not depend on tokens to be "
                                  "decoded along, as those of a PatternSource")

    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        check_edges(graph)
        for times in (1, heads):
            if (graph.num_queries, graph.num_keys) == (times * self.num_own,
                                                       times * self.num_tokens):
                return
        raise ValueError(f"'graph' must have the {self.num_own} new tokens for queries and "
                         f"{self.num_tokens} keys, or both of each head (got {graph})")

    def place(self, attention: nn.Module, key: Tensor, graph: BipartiteGraph, heads: int | None,
              teleport: Tensor | None) -> Cache:
        if torch.is_grad_enabled() and key.requires_grad:
            raise ValueError("'ptr' is of a cache, through which no gradient flows; decode inside "
                             "of torch.no_grad()")
        teleport = attention.teleport if teleport is None else teleport
        if attention.hops == math.inf:
            raise ValueError("'hops' must be finitely many for tokens to be decoded one after the "
                             "other, for the values after each hop are kept")
        if attention.training and attention.dropout and not is_one_hop(attention.hops, teleport):
            raise ValueError("'dropout' must not be drawn anew at each hop of one attention; call "
                             "eval() before decoding")
        place = self.positions() + self.ptr[segment_of(self.own_ptr, self.num_own)]
        fold = torch.arange(heads or 1, device=place.device).unsqueeze(1)
        place = (place + self.num_tokens * fold).flatten()
        if bool((graph.key > place[graph.query]).any()):
            raise ValueError("'source' must be causal for tokens to be decoded one after the "
                             "other; '& Causal()' makes a pattern so")
        return Cache(heads, self._memory(attention), place, graph)

    def attended(self, attention: nn.Module) -> None:
        memory = self._memory(attention)
        self._runs[attention] += 1
        memory.seen = self._cache.seen = [end for _, end in self._spans]

    def _memory(self, attention: nn.Module) -> Kept:
        """Return the keys and values of the layer, which must end where the new tokens begin."""
        memory = self._cache.of(attention, self._runs[attention])
        begin = [begin for begin, _ in self._spans]
        if memory.seen != begin:
            raise ValueError(f"'ptr' must go on behind the tokens of each sequence that the layer "
                             f"has seen, {memory.seen} (got a step behind {begin}); each model "
                             f"begins with a KeyValueCache of its own, and each step is for one "
                             f"pass through all of its layers")
        return memory
