"""Decoding, in which new tokens attend to cached keys and values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from graphattn._checks import check_integers, check_ptr, check_sides
from graphattn._tensors import host_copy
from graphattn.functional.drive import Placement, Teleport
from graphattn.functional.recursion import is_one_hop
from graphattn.functional.shard import Shard, check_edges
from graphattn.graphs.batching import used_keys
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import segment_of
from graphattn.placement.cache import Cache, DividedCache, Kept, NewRows, Part
from graphattn.placement.exchange import Halo, requested, sent_to_all
from graphattn.placement.messages import all_gather
from graphattn.placement.overlap import subgraph

__all__ = ['KeyValueCache']


class KeyValueCache:
    """A cache of the keys and values of all tokens that each layer of a model has processed.

    In each call of a model, pass the next tokens, ``ptr``, and ``placement=cache.step(ptr)``.
    Layers, encoders and models then return the same outputs as for whole sequences. The time of a
    call is proportional to the number of edges of the new queries.

    The edges must be causal. A pattern is built for sequences of ``length`` tokens, however few of
    these tokens are decoded. With several hops, the values after each hop are cached too: edges are
    causal, so later tokens do not change these values. If a layer runs twice in one pass, each run
    has its own cache. Several processes can share a cache
    (:func:`graphattn.distributed.sequence_parallel`).

    Args:
        length (int): Maximum number of tokens of a sequence.
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
        ...     one = torch.tensor([0, 1])
        ...     tokens = [attention(token, one, placement=cache.step(one)) for token in x.split(1)]
        >>> torch.allclose(torch.cat(tokens), whole, atol=1e-6)
        True
    """

    def __init__(self, length: int, num_sequences: int = 1):
        check_sides(length=length, num_sequences=num_sequences)
        self.length = length
        self.seen = [0] * num_sequences  # number of tokens of each sequence
        self.homes: Homes | None = None  # if several processes share the tokens
        # For each layer, a list with an entry for each run of the layer in a pass.
        self._kept = WeakIdKeyDictionary()

    def step(self, ptr: Tensor) -> Shard:
        """Return the ``placement`` for the next call of a model. Use each result only once.

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
        return Step(self, ptr, spans)

    def of(self, layer: nn.Module, run: int) -> Kept:
        """Return the cached keys and values of ``layer``. If a layer runs several times in one
        pass, each ``run``, counted from 0, has a cache of its own."""
        runs = self._kept.setdefault(layer, [])
        if run == len(runs):
            runs.append(Kept([0] * len(self.seen)))
        return runs[run]


class Step(Shard):
    """The new tokens of one call of a model: the ``placement`` of layers and models in decoding."""

    def __init__(self, cache: KeyValueCache, ptr: Tensor, spans: list[tuple[int, int]]):
        Placement.__init__(self)
        self.cache, self.all_spans, self.own_ptr = cache, spans, ptr
        self._runs: Counter[nn.Module] = Counter()  # number of runs of each layer with these tokens
        self.ptr = cache.length * torch.arange(len(spans) + 1, device=ptr.device)
        self.lengths = [cache.length] * len(spans)
        self.num_tokens = cache.length * len(spans)
        self.start, self.stop = 0, sum(end - begin for begin, end in spans)

    def spans(self) -> list[tuple[int, int]]:
        return self.all_spans

    def positions(self) -> Tensor:
        begin = torch.tensor([begin for begin, _ in self.spans()], device=self.ptr.device)
        token = torch.arange(self.num_own, device=self.ptr.device)
        segment = segment_of(self.own_ptr, self.num_own)
        return token - self.own_ptr[segment] + begin[segment]

    def tokens(self) -> Tensor:
        """Return the index of each new token of this process among all tokens, int64
        ``[num_own]``."""
        return self.positions() + self.ptr[segment_of(self.own_ptr, self.num_own)]

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

    def place(self, layer: nn.Module, key: Tensor, graph: BipartiteGraph, heads: int | None, *,
              hops: int | float, teleport: Teleport, dropout_p: float) -> Placement:
        if torch.is_grad_enabled() and key.requires_grad:
            raise ValueError("'placement' must not belong to a cache if gradients are needed, "
                             "because a KeyValueCache does not support gradients; decode inside "
                             "torch.no_grad()")
        if hops == math.inf:
            raise ValueError("'hops' must be finite for decoding, because the values after each "
                             "hop are cached (got inf)")
        self._check_dropout(dropout_p, hops, teleport)
        return self._placement(self._memory(layer), graph, heads)

    def attended(self, layer: nn.Module) -> None:
        memory = self._memory(layer)
        self._runs[layer] += 1
        memory.seen = self.cache.seen = [end for _, end in self.all_spans]

    def _check_dropout(self, dropout_p: float, hops: int, teleport: Teleport) -> None:
        if dropout_p > 0 and not is_one_hop(hops, teleport):
            raise ValueError("'dropout' must be off for decoding with several hops, because "
                             "dropout must drop the same weights in each hop; call eval() of the "
                             "model first")

    def _placement(self, memory: Kept, graph: BipartiteGraph, heads: int | None) -> Placement:
        if self.cache.homes is not None:
            raise ValueError(f"'placement' must not belong to a cache that several processes share "
                             f"(got one of {len(self.cache.homes.counts)} processes); pass the "
                             f"step to the module that sequence_parallel returned")
        self._check_causal(graph, heads)
        return Cache(heads, memory, self._nodes(heads), graph)

    def _check_causal(self, graph: BipartiteGraph, heads: int | None) -> None:
        if self._has_later_keys(graph, heads):
            raise _not_causal()

    def _has_later_keys(self, graph: BipartiteGraph, heads: int | None) -> bool:
        return bool((graph.key > self._nodes(heads)[graph.query]).any())

    def _nodes(self, heads: int | None) -> Tensor:
        # among the keys of the graph, for head 0, then for head 1, if each head has its own graph
        fold = torch.arange(heads or 1, device=self.ptr.device).unsqueeze(1)
        return (self.tokens() + self.num_tokens * fold).flatten()

    def _memory(self, layer: nn.Module) -> Kept:
        # new tokens must begin where the cached tokens end
        memory = self.cache.of(layer, self._runs[layer])
        begin = [begin for begin, _ in self.all_spans]
        if memory.seen != begin:
            raise ValueError(f"'placement' must continue after the tokens in the cache of the "
                             f"layer, {memory.seen} tokens per sequence (got a step after "
                             f"{begin} tokens per sequence); create one KeyValueCache for "
                             f"each model, and use each step for one pass through all layers")
        return memory


def _not_causal() -> ValueError:
    return ValueError("'source' must be causal for decoding (got edges from later tokens); "
                      "'& Causal()' makes a pattern causal")


class Homes:
    """The process that caches each token of a shared cache, and its index among all tokens
    there."""

    def __init__(self, num_tokens: int, num_processes: int, device: torch.device):
        # Tensors that are created in inference mode are read-only outside of it, but later steps
        # write.
        with torch.inference_mode(False):
            self.owner = torch.full((num_tokens,), -1, device=device)  # process of each token
            self.number = torch.zeros_like(self.owner)  # index among the tokens of this process
        self.counts = [0] * num_processes  # number of tokens of each process

    def put(self, tokens: Tensor, owner: Tensor) -> list[int]:
        """Assign new tokens to processes, and return the number of tokens that each process then
        caches."""
        # if a step is repeated, its tokens are assigned again
        for process, count in enumerate(self.counts):
            own = tokens[owner == process]
            self.number[own] = count + torch.arange(len(own), device=own.device)
        self.owner[tokens] = owner
        added = owner.bincount(minlength=len(self.counts)).tolist()
        return [*map(sum, zip(self.counts, added))]


class DividedStep(Step):
    """The new tokens of one call of a model, if several processes share the cache."""

    # bounds: where the new tokens of each process begin; None: every process computes all
    def __init__(self, step: Step, bounds: list[int] | None, group: dist.ProcessGroup):
        super().__init__(step.cache, step.own_ptr, step.all_spans)
        self._group, self._rank, self._is_divided = group, dist.get_rank(group), bounds is not None
        self._own_spans = self.all_spans
        self._new = self.tokens()
        if bounds is None:
            self._owner = self._new % dist.get_world_size(group)
        else:
            sizes = torch.tensor(bounds, device=self.ptr.device).diff()
            self._owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
            self.start, self.stop = bounds[self._rank:self._rank + 2]
            self._own_spans = [
                tuple(begin + min(max(edge - first, 0), end - begin)
                      for edge in (self.start, self.stop))
                for (begin, end), first in zip(self.all_spans, host_copy(step.own_ptr).tolist())]
            self.own_ptr = step.own_ptr.clamp(self.start, self.stop) - self.start
        self._counts: list[int] = []  # number of tokens of each process after this step
        self._causes = WeakIdKeyDictionary()
        self._plans: dict[object, tuple[BipartiteGraph, Halo, Part | None]] = {}

    def spans(self) -> list[tuple[int, int]]:
        return self._own_spans

    def built_from(self, graph: BipartiteGraph, cause: Hashable) -> None:
        self._causes[graph] = cause

    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        error = None
        try:
            super().check_graph(graph, heads)
        except (TypeError, ValueError) as raised:
            error = raised
        fits = all_gather(self.ptr.new_tensor([error is None]), self._group).flatten().tolist()
        if error is not None:
            raise error
        if not all(fits):
            raise ValueError(f"'graph' must have one query for each new token of its process, and "
                             f"all tokens of the cache as keys, but the graph of process "
                             f"{fits.index(0)} does not; build a graph for each process")

    def attended(self, layer: nn.Module) -> None:
        super().attended(layer)
        self.cache.homes.counts = self._counts

    def _check_dropout(self, dropout_p: float, hops: int, teleport: Teleport) -> None:
        if dropout_p > 0:
            raise ValueError(f"'dropout' must be off for decoding over several processes (got "
                             f"{dropout_p}); call eval() of the model first")

    def _placement(self, memory: Kept, graph: BipartiteGraph, heads: int | None) -> Placement:
        if not self._counts:
            cache = self.cache
            if cache.homes is None:
                cache.homes = Homes(self.num_tokens, dist.get_world_size(self._group),
                                    self.ptr.device)
            self._counts = cache.homes.put(self._new, self._owner)
        cause = self._causes.get(graph, id(graph))
        if cause not in self._plans:
            # The graph is stored too: as long as it lives, no other graph has its id.
            self._plans[cause] = graph, *self._plan(graph, heads)
        _, halo, part = self._plans[cause]
        return DividedCache(heads, halo, self._group, memory, self._new_rows(heads or 1), part)

    def _new_rows(self, heads: int) -> NewRows:
        # The rows of one token are adjacent in the cache, so they never move as tokens are added.
        # heads is 1 if all heads share one graph.
        own = self._owner == self._rank
        tokens = self._new[own]
        own = torch.arange(len(tokens), device=tokens.device) if self._is_divided else own.nonzero()
        fold = torch.arange(heads, device=tokens.device).unsqueeze(1)
        place = self.cache.homes.number[tokens] * heads + fold
        return NewRows((own.flatten() + self.num_own * fold).flatten(), place.flatten(),
                       self._num_places(heads))

    def _num_places(self, heads: int | None) -> int:
        return self._counts[self._rank] * (heads or 1)

    def _plan(self, graph: BipartiteGraph, heads: int | None) -> tuple[Halo, Part | None]:
        # No part if each process computes only some of the new queries.
        homes, (node, near) = self.cache.homes, used_keys(graph)
        head, token = node // self.num_tokens, node % self.num_tokens
        owner, number = homes.owner[token], homes.number[token] * (heads or 1) + head
        if self._is_divided:
            sizes = self._sizes_of_all(owner, self._has_later_keys(graph, heads))
            return Halo(near, *requested(owner, number, sizes, self._group)), None
        self._check_causal(graph, heads)
        is_own = owner == self._rank
        is_in, own = is_own[near.key], number[is_own]
        is_all = len(own) == self._num_places(heads) and bool((own.diff() > 0).all())
        part = Part(subgraph(near, is_own, is_in), None if is_all else own, is_in)
        return Halo(near, *sent_to_all(owner, number, self._group)), part

    def _sizes_of_all(self, owner: Tensor, has_later_keys: bool) -> Tensor:
        num_processes = dist.get_world_size(self._group)
        sizes = owner.new_full((num_processes,), -1) if has_later_keys else owner.bincount(
            minlength=num_processes)
        sizes = all_gather(sizes, self._group)
        # every process raises if the graph of any process has later keys
        if bool((sizes < 0).any()):
            raise _not_causal()
        return sizes


def check_shared(step: Step, num_processes: int) -> None:
    """Raise unless ``num_processes`` processes can share the cache of ``step``, empty or theirs."""
    homes = step.cache.homes
    if homes is None and any(step.cache.seen):
        raise ValueError("'ptr' must belong to an empty cache, or to a cache that these processes "
                         "already share (got a cache that one process has filled alone); create "
                         "a KeyValueCache in each process, and pass the prompt again")
    if homes is not None and len(homes.counts) != num_processes:
        raise ValueError(f"'ptr' must belong to a cache of {num_processes} processes (got "
                         f"{len(homes.counts)}); create another KeyValueCache")
