"""Attention of padded sequences along graphs, which know of no padding: the border to other
people's models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from graphattn import functional
from graphattn.conversions import is_above_lowest
from graphattn.functional.edge_features import repeat_heads
from graphattn.functional.recursion import is_one_hop
from graphattn.graph import BipartiteGraph
from graphattn.layers.folding import fold_heads, unfold_heads
from graphattn.pair_mask import PairMask
from graphattn.patterns import Causal
from graphattn.sources import GraphSource, PatternSource


@dataclass(frozen=True, eq=False)
class PaddedTokens:
    """Where the tokens of sequences are among the slots of padded queries and keys.

    Positions count the slots of the keys from the beginning of the sequence, whether a cache still
    holds those or not. What attends is the tokens, one after the other, as if nothing were padded:
    the first token of a sequence is its first one on whichever side the padding stands.

    Args:
        batch (int): Sequences.
        num_queries (int): Slots of the queries of each.
        num_keys (int): Slots of the keys of each.
        device (torch.device): Of the tokens.
        is_token (Tensor, optional): Which positions hold a token, bool ``[batch, positions]``; all
            if omitted.
        first_query (int): Position of the first query.
        first_key (int): Position of the first key.
        same_tokens (bool): Whether queries are the tokens that are the keys at their positions;
            otherwise all queries are tokens, and ``is_token`` is of the keys alone.
    """

    batch: int
    num_queries: int
    num_keys: int
    device: torch.device
    is_token: Tensor | None = None
    first_query: int = 0
    first_key: int = 0
    same_tokens: bool = True

    @cached_property
    def _token(self) -> tuple[Tensor, Tensor] | None:
        """The sequence and the position of each token; ``None`` where every slot is one."""
        behind = self._behind
        if self.is_token is None and self.first_key + self.num_keys == behind:
            return None
        is_token = self.is_token
        if is_token is None:  # the slots behind are those that a cache has yet to fill
            is_token = torch.ones(self.batch, behind, dtype=torch.bool, device=self.device)
        return is_token[:, :behind].nonzero().unbind(1)

    @property
    def _behind(self) -> int:
        """The position behind the last key that a query may see."""
        last_key = self.first_key + self.num_keys
        return min(self.first_query + self.num_queries, last_key) if self.same_tokens else last_key

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each sequence of keys, those included that a cache no longer holds."""
        return self._before(self._behind)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Among those, from where to where the queries of each sequence stand."""
        if not self.same_tokens:
            return [(0, self.num_queries)] * self.batch
        return [(first, length) for first, length in zip(self._before(self.first_query),
                                                         self.lengths)]

    def _before(self, position: int) -> list[int]:
        """Tokens of each sequence before a position."""
        if self._token is None:
            return [position] * self.batch
        position = min(position, self._behind)
        if self.is_token is None or position == 0:
            return [position] * self.batch
        return self.is_token[:, :position].sum(dim=1).tolist()

    @property
    def is_square(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.same_tokens and self.first_query == self.first_key == 0

    @cached_property
    def ptr(self) -> Tensor:
        """Where each sequence of keys begins, int64 ``[batch + 1]``."""
        return torch.tensor([*accumulate(self.lengths, initial=0)], device=self.device)

    @property
    def query_ptr(self) -> Tensor:
        """Where the queries of each sequence begin, int64 ``[batch + 1]``."""
        counts = [last - first for first, last in self.spans]
        return torch.tensor([*accumulate(counts, initial=0)], device=self.device)

    def queries(self, x: Tensor) -> Tensor:
        """The tokens of ``[batch, num_queries, ...]``, one sequence after the other."""
        return _take(x, self._query_slot)

    def keys(self, x: Tensor) -> Tensor:
        """The tokens of ``[batch, num_keys, ...]``, one sequence after the other."""
        return _take(x, self._key_slot)

    def attended(self, graph: BipartiteGraph,
                 *tensors: Tensor) -> tuple[BipartiteGraph, *tuple[Tensor, ...]]:
        """The graph and the keys of ``[batch, num_keys, ...]``, but for those that no edge leads to
        where that is most of them: one query behind a cache reads its own keys alone."""
        if graph.num_edges >= graph.num_keys:
            return graph, *(self.keys(x) for x in tensors)
        used, edge_key = graph.key.unique(return_inverse=True)
        slot = used if self._key_slot is None else self._key_slot[used]
        at = slot // self.num_keys, slot % self.num_keys
        near = BipartiteGraph.from_csr(graph.csr[0], edge_key, len(used), validate=False)
        return near, *(x[at] for x in tensors)

    def pad_queries(self, x: Tensor) -> Tensor:
        """``[batch, num_queries, ...]`` of tokens ``[num_tokens, ...]``, 0 where there is none."""
        if self._query_slot is not None:
            padded = x.new_zeros(self.batch * self.num_queries, *x.shape[1:])
            x = padded.index_copy(0, self._query_slot, x)
        return x.unflatten(0, (self.batch, self.num_queries))

    @cached_property
    def _query_slot(self) -> Tensor | None:
        if self._token is None or not self.same_tokens:
            return None
        sequence, position = self._tokens_from(self.first_query)
        return sequence * self.num_queries + position - self.first_query

    @cached_property
    def _key_slot(self) -> Tensor | None:
        if self._token is None:
            return None
        sequence, position = self._tokens_from(self.first_key)
        return sequence * self.num_keys + position - self.first_key

    def _tokens_from(self, first: int) -> tuple[Tensor, Tensor]:
        """The sequence and the position of each token from a position on."""
        if first == 0:
            return self._token
        is_behind = self._token[1] >= first
        return tuple(part[is_behind] for part in self._token)

    def place(self, graph: BipartiteGraph) -> EdgePlaces:
        """Where the edges of a graph are whose blocks are these sequences, once or for each head,
        with the keys that a cache no longer holds."""
        query_slot = torch.arange(self.batch * self.num_queries, device=self.device)
        query_slot = query_slot if self._query_slot is None else self._query_slot
        if self._token is None:
            key_position = torch.arange(self._behind, device=self.device).repeat(self.batch)
        else:
            key_position = self._token[1]
        query, is_shared = graph.query, graph.num_queries == len(query_slot)
        head = None if is_shared else query // len(query_slot)
        slot = query_slot[query % len(query_slot)]
        return EdgePlaces(slot // self.num_queries, head,
                          slot % self.num_queries + self.first_query,
                          key_position[graph.key % len(key_position)])

    def drop_evicted(self, graph: BipartiteGraph) -> BipartiteGraph:
        """The graph without the keys that a cache no longer holds, to which no edge leads."""
        if self.first_key == 0:
            return graph
        evicted = torch.tensor(self._before(self.first_key), device=self.device)
        times = graph.num_blocks // self.batch
        shift = evicted.repeat(times).cumsum(0)
        key_ptr = graph.key_ptr
        block = torch.bucketize(graph.key, key_ptr, right=True) - 1
        key_ptr[1:] -= shift
        return BipartiteGraph.from_csr(graph.indptr, graph.key - shift[block], int(key_ptr[-1]),
                                       query_ptr=graph.query_ptr, key_ptr=key_ptr, validate=False)


class EdgePlaces(NamedTuple):
    """Where edges are in a padded batch: int64 ``[num_edges]`` each."""

    sequence: Tensor
    head: Tensor | None  # None if all heads share the edges
    query: Tensor  # position
    key: Tensor


class PairRules(NamedTuple):
    """What besides a source says which query attends to which key, and how much.

    Args:
        causal (bool): To no later key.
        allows (Callable): ``(sequence, query, key)``, positions, to whether they may, bool.
        tables (sequence of Tensor): ``[batch, heads, query, key]``, either of the first two
            possibly 1, over slots: bool, ``True`` where a query may attend; or floating, added to
            logits.
    """

    causal: bool = False
    allows: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    tables: Sequence[Tensor] = ()

    @property
    def are_none(self) -> bool:
        """Whether they say nothing."""
        return not self.causal and self.allows is None and not self.tables


@torch.compiler.disable(reason='whether it is a likely mistake is asked of numbers')
def warn_of_zeros_and_ones(name: str, mask: Tensor) -> None:
    """Of a floating mask, which is added to logits, where it seems to say yes and no."""
    if not mask.is_floating_point() or mask.numel() == 0 or bool(mask.amax() != 1):
        return
    if bool(((mask == 0) | (mask == 1)).all()):
        warnings.warn(f"'{name}' is floating and holds 0 and 1 alone, which are added to logits "
                      f"and bar no key; give a boolean mask if it says who attends to whom",
                      stacklevel=2)


@torch.compiler.disable(reason='which slots are tokens decides which edges there are')
def attend_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    along: GraphSource | BipartiteGraph,
    tokens: PaddedTokens,
    rules: PairRules,
    *,
    scale: float | None = None,
    dropout_p: float = 0.,
    hops: int | float = 1,
    teleport: float | Sequence[float] | Tensor = 0.,
    return_attention_weights: bool = False,
    backend: str = 'auto',
) -> tuple[Tensor, Tensor | None]:
    """Attention of padded sequences.

    Args:
        query (Tensor): ``[batch, num_queries, heads, channels]``.
        key (Tensor): ``[batch, num_keys, key_heads, channels]``, of as many heads or of a number
            that divides theirs.
        value (Tensor): ``[batch, num_keys, key_heads, value_channels]``.
        along (GraphSource or BipartiteGraph): Where the edges come from, or the edges, of blocks
            that are the sequences of ``tokens``.
        tokens (PaddedTokens): What in them is no padding.
        rules (PairRules): What else decides who attends to whom.
        scale (float, optional): Of dot products, :math:`1 / \\sqrt{C}` if omitted.
        dropout_p (float): As in :func:`graphattn.functional.edge_attention`.
        hops (int or float): As in :func:`graphattn.functional.edge_attention`.
        teleport (float, sequence of float or Tensor): For all hops, for each hop, or for each head
            ``[heads]``.
        return_attention_weights (bool): Also form the weights, those of one hop, densely.
        backend (str): As in :func:`graphattn.functional.edge_attention`.

    Returns:
        Tensor ``[batch, num_queries, heads, value_channels]``, 0 for padding; and the weights
        ``[batch, heads, num_queries, num_keys]`` or ``None``.

    Raises:
        ValueError: A source that is no pattern is asked for queries behind a cache, one for tokens
            that attend to one another for queries of another sequence, or one of soft masks for
            what they cannot do; or values are to travel several hops where not all keys are
            queries.
    """
    _warn_of_empty(tokens)
    is_plain = is_one_hop(hops, teleport)
    if not (is_plain or tokens.is_square):
        raise ValueError(f"'hops' must be 1, without a teleport, where keys are not the tokens of "
                         f"the queries, because values travel on from keys that are queries too "
                         f"(got {hops}); without a cache they are, with use_cache=False")
    heads, query = query.size(2), tokens.queries(query)
    graph, terms = along, {}
    if not isinstance(along, BipartiteGraph):  # a source, or an adapter around one
        graph, rules = _ask(along, query, key, tokens, rules)
        if isinstance(graph, PairMask):
            _check_alone(rules, return_attention_weights)
            key, value = (repeat_heads(tokens.keys(x), heads) for x in (key, value))
            out = functional.pair_attention(query, key, value, tokens.ptr, graph, scale=scale,
                                            dropout_p=dropout_p, hops=hops, teleport=teleport)
            return tokens.pad_queries(out), None
        terms = along.logit_terms(graph)
    if not rules.are_none:
        graph, terms = _obey(rules, graph, terms, tokens, query.dtype)
    is_folded, near = graph.num_queries != query.size(0), tokens.drop_evicted(graph)
    if is_folded:
        if isinstance(teleport, Tensor):  # each folded node has its head's
            teleport = teleport.repeat_interleave(query.size(0)).unsqueeze(1)
        query = fold_heads(query)
        key, value = (fold_heads(repeat_heads(tokens.keys(x), heads)) for x in (key, value))
    elif is_plain:
        near, key, value = tokens.attended(near, key, value)
    else:
        key, value = tokens.keys(key), tokens.keys(value)
    out = functional.edge_attention(query, key, value, near, scale=scale, dropout_p=dropout_p,
                                    hops=hops, teleport=teleport,
                                    return_attention_weights=return_attention_weights,
                                    backend=backend, **terms)
    out, weight = out if return_attention_weights else (out, None)
    if weight is not None:
        weight = _dense(weight, tokens.place(graph), tokens, heads)
    return tokens.pad_queries(unfold_heads(out, heads) if is_folded else out), weight


def _warn_of_empty(tokens: PaddedTokens) -> None:
    if tokens.is_token is None or tokens.num_keys == 0 or 0 not in tokens.lengths:
        return
    warnings.warn(f"the mask of padding leaves no token of sequence {tokens.lengths.index(0)}, "
                  f"whose output is 0; is it the wrong way round? transformers' 'attention_mask' "
                  f"is 1 at tokens, torch's 'key_padding_mask' is True at padding", stacklevel=2)


def _ask(source: GraphSource, query: Tensor, key: Tensor, tokens: PaddedTokens,
         rules: PairRules) -> tuple[BipartiteGraph | PairMask, PairRules]:
    """The graph, and the rules that it does not obey already."""
    if isinstance(source, PatternSource):
        _check_length(source, tokens)
        within = Causal() if rules.causal else None
        graph = source.span_graph(tokens.lengths, tokens.spans, tokens.device, within=within)
        return graph, rules._replace(causal=False)
    key = repeat_heads(tokens.keys(key), query.size(1)) if source.per_head else tokens.keys(key)
    if tokens.is_square:
        return source(query, key, tokens.ptr), rules
    if tokens.same_tokens:
        raise ValueError(f"the source must be a pattern where keys stand before the queries, from "
                         f"a cache or a prefix, for others look at the query of each key (got "
                         f"{type(source).__name__}); leave the prefix out, or generate with "
                         f"use_cache=False")
    return source(query, key, tokens.query_ptr, key_ptr=tokens.ptr), rules


def _check_length(source: PatternSource, tokens: PaddedTokens) -> None:
    longest = max(tokens.lengths, default=0)
    if source.max_length is not None and longest > source.max_length:
        raise ValueError(f"the source is for sequences of at most {source.max_length} tokens (got "
                         f"{longest})")


def _check_alone(rules: PairRules, needs_weights: bool) -> None:
    if not rules.are_none:
        raise ValueError("the source must give graphs where a mask besides padding decides who "
                         "attends to whom, as causal ones do (got one of soft masks, which weigh "
                         "every pair)")
    if needs_weights:
        raise ValueError("the source must give graphs where weights are asked for (got one of soft "
                         "masks); ask for none")


def _obey(rules: PairRules, graph: BipartiteGraph, terms: dict[str, Tensor],
          tokens: PaddedTokens, dtype: torch.dtype) -> tuple[BipartiteGraph, dict[str, Tensor]]:
    """The edges that the rules allow, and the logit terms on them."""
    place = tokens.place(graph)
    keep = place.key <= place.query if rules.causal else torch.ones_like(place.key, dtype=bool)
    if rules.allows is not None:
        keep &= rules.allows(place.sequence, place.query, place.key)
    added = [bias.unsqueeze(-1).flatten(1) for name, bias in terms.items()
             if name == 'edge_bias']
    for table in rules.tables:
        values = _look_up(table, place, tokens)
        is_on = values if values.dtype == torch.bool else is_above_lowest(values)
        keep &= is_on.any(dim=1)
        bias = torch.zeros_like(values, dtype=dtype) if values.dtype == torch.bool else values
        says_no_more = values.size(1) == 1 and not (bias.requires_grad or bool(bias[keep].any()))
        added += [] if says_no_more else [bias.to(dtype).masked_fill(~is_on, -math.inf)]
    terms = terms | ({'edge_bias': sum(added).squeeze(1)} if added else {})
    if bool(keep.all()):
        return graph, terms
    return graph.select_edges(keep), {name: values[keep] for name, values in terms.items()}


def _look_up(table: Tensor, place: EdgePlaces, tokens: PaddedTokens) -> Tensor:
    """Its values on the edges, ``[num_edges, heads or 1]``."""
    table = table.movedim(1, -1)
    table = table.expand(tokens.batch, *table.shape[1:])
    where = place.sequence, place.query - tokens.first_query, place.key - tokens.first_key
    if place.head is None:
        return table[where]
    head = place.head if table.size(-1) > 1 else torch.zeros_like(place.head)
    return table[*where, head].unsqueeze(1)


def _dense(weight: Tensor, place: EdgePlaces, tokens: PaddedTokens, heads: int) -> Tensor:
    dense = weight.new_zeros(tokens.batch, tokens.num_queries, tokens.num_keys, heads)
    where = place.sequence, place.query - tokens.first_query, place.key - tokens.first_key
    if place.head is not None:
        where, weight = (*where, place.head), weight.squeeze(1)
    return dense.index_put(where, weight).movedim(-1, 1)


def _take(x: Tensor, slot: Tensor | None) -> Tensor:
    x = x.flatten(0, 1)
    return x if slot is None else x[slot]
