"""Sequences that grow: each new token attends to keys and values that are kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from graphattn._checks import check_pointer, check_ptr, check_sides
from graphattn.blocks import block_of
from graphattn.functional.recursion import is_one_hop
from graphattn.graph import BipartiteGraph
from graphattn.shard import Shard


class KeyValueCache:
    """Keys and values of the tokens that a model has seen, for each of its layers.

    ``cache.step(ptr)`` stands in the place of ``ptr`` for the tokens that come next: layers,
    encoders and models then give what they give for the whole sequences, in time that follows the
    edges of the new queries. The graph must be causal, and is that of sequences of ``length``
    tokens, however many there are so far.

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
        self._kept = WeakIdKeyDictionary()  # by layer, of heads and sequences side by side

    def step(self, ptr: Tensor) -> Shard:
        """What stands for ``ptr`` in the next call of a model, once.

        Args:
            ptr (Tensor): Where the new tokens of each sequence begin, int64
                ``[num_sequences + 1]``.

        Raises:
            TypeError: ``ptr`` is not an int64 Tensor.
            ValueError: It marks another number of sequences, or a sequence would have more tokens
                than ``length``.
        """
        check_pointer('ptr', ptr, ptr.device)
        check_ptr('ptr', ptr, None, ptr.device)
        if ptr.numel() != len(self.seen) + 1:
            raise ValueError(f"'ptr' must mark the {len(self.seen)} sequences of the cache (got "
                             f"{ptr.numel() - 1})")
        spans = [(seen, seen + count) for seen, count in zip(self.seen, ptr.diff().tolist())]
        if max(end for _, end in spans) > self.length:
            raise ValueError(f"'ptr' must leave sequences within the {self.length} tokens of the "
                             f"cache (got {max(end for _, end in spans)})")
        self.seen = [end for _, end in spans]
        return _Step(self, ptr, spans)

    def put(self, layer: nn.Module, place: Tensor, new: tuple[Tensor, Tensor],
            num_places: int, has_begun: bool) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer ``[num_places, heads, channels]``, the new ones among them.
        ``has_begun`` says that there are tokens already, which the layer then has seen."""
        if layer not in self._kept:
            if has_begun:
                raise ValueError("'ptr' is of a cache that another model has filled; each model "
                                 "begins with a KeyValueCache of its own")
            self._kept[layer] = tuple(x.new_zeros(num_places, *x.shape[1:]) for x in new)
        kept = self._kept[layer]
        for buffer, x in zip(kept, new):
            if (buffer.size(0), *buffer.shape[1:]) != (num_places, *x.shape[1:]):
                raise ValueError(f"'ptr' is of a cache for other heads: {tuple(buffer.shape[1:])} "
                                 f"(got {tuple(x.shape[1:])})")
            buffer[place] = x
        return kept


class _Step(Shard):
    """The new tokens of sequences that are ``length`` tokens long when they are whole."""

    def __init__(self, cache: KeyValueCache, ptr: Tensor, spans: list[tuple[int, int]]):
        self._cache, self._spans, self.own_ptr = cache, spans, ptr
        self.ptr = cache.length * torch.arange(len(spans) + 1, device=ptr.device)
        self.lengths = [cache.length] * len(spans)
        self.num_tokens = cache.length * len(spans)
        self.start, self.stop = 0, sum(end - begin for begin, end in spans)

    def spans(self) -> list[tuple[int, int]]:
        return self._spans

    def positions(self) -> Tensor:
        begin = torch.tensor([begin for begin, _ in self._spans], device=self.ptr.device)
        token = torch.arange(self.num_own, device=self.ptr.device)
        block = block_of(self.own_ptr)
        return token - self.own_ptr[block] + begin[block]

    def gather(self, x: Tensor) -> Tensor:
        raise NotImplementedError("'source' must have edges that do not depend on tokens to be "
                                  "decoded along, as those of a PatternSource")

    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        for times in (1, heads):
            if (graph.num_queries, graph.num_keys) == (times * self.num_own,
                                                       times * self.num_tokens):
                return
        raise ValueError(f"'graph' must have the {self.num_own} new tokens for queries and "
                         f"{self.num_tokens} keys, or both of each head (got {graph})")

    def attend(self, attention: nn.Module, query: Tensor, key: Tensor, value: Tensor,
               graph: BipartiteGraph, *, teleport: Tensor | None = None,
               **terms: Tensor) -> Tensor:
        if torch.is_grad_enabled() and key.requires_grad:
            raise ValueError("'ptr' is of a cache, through which no gradient flows; decode inside "
                             "of torch.no_grad()")
        if not is_one_hop(attention.hops, attention.teleport if teleport is None else teleport):
            raise ValueError("'hops' must be 1 without a teleport for tokens to be decoded one "
                             "after the other, for more pass through tokens that are not there yet")
        times = graph.num_queries // max(self.num_own, 1)  # heads that are folded into nodes
        place = self.positions() + self.ptr[block_of(self.own_ptr)]
        fold = torch.arange(times, device=place.device).unsqueeze(1)
        place = (place + self.num_tokens * fold).flatten()
        edge_key = graph.key
        if bool((edge_key > place[graph.query]).any()):
            raise ValueError("'source' must be causal for tokens to be decoded one after the "
                             "other; '& Causal()' makes a pattern so")
        keys, values = self._cache.put(attention, place, (key, value), times * self.num_tokens,
                                       has_begun=any(begin > 0 for begin, _ in self._spans))
        used, edge_key = edge_key.unique(return_inverse=True)
        near = BipartiteGraph.from_csr(graph.csr[0], edge_key, used.numel(), validate=False)
        return attention(query, keys[used], values[used], near, **terms)
