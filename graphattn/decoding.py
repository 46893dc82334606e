"""Sequences that grow: each new token attends to keys and values that are kept."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from graphattn._checks import check_integers, check_ptr, check_sides
from graphattn._tensors import on_cpu
from graphattn.blocks import block_of
from graphattn.functional import edge_attention
from graphattn.functional.edge_features import repeat_heads
from graphattn.functional.recursion import is_one_hop, restart, spread_teleport
from graphattn.graph import BipartiteGraph
from graphattn.shard import Shard


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
        """What stands for ``ptr`` in the next call of a model, and in no other.

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
        counts = on_cpu(ptr).diff().tolist()
        spans = [(seen, seen + count) for seen, count in zip(self.seen, counts)]
        if max(end for _, end in spans) > self.length:
            raise ValueError(f"'ptr' must leave sequences within the {self.length} tokens of the "
                             f"cache (got {max(end for _, end in spans)})")
        return _Step(self, ptr, spans)

    def of(self, layer: nn.Module, run: int) -> _Kept:
        """What a layer keeps that a pass has run so often before."""
        runs = self._kept.setdefault(layer, [])
        if run == len(runs):
            runs.append(_Kept([0] * len(self.seen)))
        return runs[run]


class _Kept:
    """What one layer keeps of the sequences.

    Args:
        seen (list of int): Tokens of each that it has seen.
    """

    def __init__(self, seen: list[int]):
        self.seen = seen
        self._tensors: dict[str, Tensor] = {}  # of heads and sequences side by side

    def put(self, name: str, place: Tensor, new: Tensor, num_places: int) -> Tensor:
        """What is kept under a name, ``[num_places, heads, channels]``, the new ones among it."""
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
        block = block_of(self.own_ptr, self.num_own)
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
        teleport = attention.teleport if teleport is None else teleport
        if attention.hops == math.inf:
            raise ValueError("'hops' must be finitely many for tokens to be decoded one after the "
                             "other, for the values after each hop are kept")
        if attention.training and attention.dropout and not is_one_hop(attention.hops, teleport):
            raise ValueError("'dropout' must not be drawn anew at each hop of one attention; call "
                             "eval() before decoding")
        times = graph.num_keys // self.num_tokens  # heads that are folded into nodes
        place = self.positions() + self.ptr[block_of(self.own_ptr, self.num_own)]
        fold = torch.arange(times, device=place.device).unsqueeze(1)
        place = (place + self.num_tokens * fold).flatten()
        edge_key = graph.key
        if bool((edge_key > place[graph.query]).any()):
            raise ValueError("'source' must be causal for tokens to be decoded one after the "
                             "other; '& Causal()' makes a pattern so")
        memory = self._memory(attention)

        def kept(name: str, new: Tensor) -> Tensor:
            return memory.put(name, place, new, times * self.num_tokens)[used]

        used, edge_key = edge_key.unique(return_inverse=True)
        near = BipartiteGraph.from_csr(graph.csr[0], edge_key, used.numel(), validate=False)
        keys = kept('key', key)
        if is_one_hop(attention.hops, teleport):
            z = attention(query, keys, kept('value', value), near, **terms)
        else:
            # After a hop each head of queries has values of its own.
            keys, value = (repeat_heads(x, query.size(1)) for x in (keys, value))
            z, shares = value, spread_teleport(teleport, attention.hops, value)
            for hop, share in enumerate(reversed(shares)):
                reached = edge_attention(query, keys, kept(f'hop {hop}', z), near,
                                         scale=attention.scale, backend=attention.backend, **terms)
                z = restart(reached, value, share.unsqueeze(-1).to(value.dtype))
        self._runs[attention] += 1
        memory.seen = self._cache.seen = [end for _, end in self._spans]
        return z

    def _memory(self, attention: nn.Module) -> _Kept:
        """What the layer keeps, which must end where the new tokens begin."""
        memory = self._cache.of(attention, self._runs[attention])
        begin = [begin for begin, _ in self._spans]
        if memory.seen != begin:
            raise ValueError(f"'ptr' must go on behind the tokens of each sequence that the layer "
                             f"has seen, {memory.seen} (got a step behind {begin}); each model "
                             f"begins with a KeyValueCache of its own, and each step is for one "
                             f"pass through all of its layers")
        return memory
