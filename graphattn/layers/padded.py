"""Attention of padded sequences along graphs, which know of no padding: the border to other
people's models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphattn.functional.checks import check_scale_and_dropout
from graphattn.functional.drive import drive
from graphattn.functional.folding import repeat_heads
from graphattn.functional.recursion import is_one_hop
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.masks import is_above_lowest
from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops import LogitTerms
from graphattn.patterns import Causal
from graphattn.placement.padded import EdgePlaces, Padded, PaddedTokens
from graphattn.sources import GraphSource, PatternSource
from graphattn.sources.base import terms_on

NO_TERMS = LogitTerms()


class PairRules(NamedTuple):
    """Rules besides a source: which query attends to which key, and how much.

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
        """Return whether there are no rules."""
        return not self.causal and self.allows is None and not self.tables


@torch.compiler.disable(reason='whether it is a likely mistake is asked of numbers')
def warn_of_zeros_and_ones(name: str, mask: Tensor) -> None:
    """Warn of a floating mask, which is added to logits, where it seems to mean yes and no."""
    if not mask.is_floating_point() or mask.numel() == 0 or bool(mask.amax() != 1):
        return
    if bool(((mask == 0) | (mask == 1)).all()):
        warnings.warn(f"'{name}' is floating and holds 0 and 1 alone, which are added to logits "
                      f"and bar no key; give a boolean mask if it says which query attends to "
                      f"which key", stacklevel=2)


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
    r"""Return attention of padded sequences.

    Args:
        query (Tensor): ``[batch, num_queries, heads, channels]``.
        key (Tensor): ``[batch, num_keys, num_kv_heads, channels]``, of as many heads or of a number
            that divides theirs.
        value (Tensor): ``[batch, num_keys, num_kv_heads, value_channels]``.
        along (GraphSource or BipartiteGraph): Where the edges come from, or the edges, of segments
            that are the sequences of ``tokens``.
        tokens (PaddedTokens): What in them is no padding.
        rules (PairRules): Other rules on which query attends to which key.
        scale (float, optional): Of dot products, :math:`1 / \sqrt{C}` if omitted.
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
    graph, terms = along, NO_TERMS
    if not isinstance(along, BipartiteGraph):  # a source, or an adapter around one
        graph, rules = _ask(along, query, key, tokens, rules)
        if isinstance(graph, PairMask):
            _check_alone(rules, return_attention_weights)
            graph = MaskedPairs(graph, tokens.ptr)
        else:
            terms = terms_on(graph, along)
    if not rules.are_none:
        graph, terms = _obey(rules, graph, terms, tokens, query.dtype)
    owners = heads if graph.num_queries != query.size(0) else None
    placement = Padded(tokens, graph, owners, hops_end=is_plain)
    check_scale_and_dropout(scale, dropout_p)
    terms = terms._replace(scale=scale, dropout_p=dropout_p)
    out, weight = drive(query, key, value, placement.graph, terms, hops, teleport, placement,
                        backend=backend, needs_weights=return_attention_weights)
    if weight is not None:
        weight = _dense(weight, tokens.place(graph), tokens, heads)
    return out, weight


def _warn_of_empty(tokens: PaddedTokens) -> None:
    if tokens.is_token is None or tokens.num_keys == 0 or 0 not in tokens.lengths:
        return
    warnings.warn(f"the mask of padding leaves no token of sequence {tokens.lengths.index(0)}, "
                  f"whose output is 0; is it the wrong way round? transformers' 'attention_mask' "
                  f"is 1 at tokens, torch's 'key_padding_mask' is True at padding", stacklevel=2)


def _ask(source: GraphSource, query: Tensor, key: Tensor, tokens: PaddedTokens,
         rules: PairRules) -> tuple[BipartiteGraph | PairMask, PairRules]:
    """Return the graph, and the rules that it does not obey already."""
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
        raise ValueError("the source must give graphs where a mask besides padding decides "
                         "which query attends to which key, as causal ones do (got one of soft "
                         "masks, which weigh every pair)")
    if needs_weights:
        raise ValueError("the source must give graphs where weights are asked for (got one of soft "
                         "masks); ask for none")


def _obey(rules: PairRules, graph: BipartiteGraph, terms: LogitTerms, tokens: PaddedTokens,
          dtype: torch.dtype) -> tuple[BipartiteGraph, LogitTerms]:
    """Return the edges that the rules allow, and the logit terms on them."""
    place = tokens.place(graph)
    keep = place.key <= place.query if rules.causal else torch.ones_like(place.key, dtype=bool)
    if rules.allows is not None:
        keep &= rules.allows(place.sequence, place.query, place.key)
    added = [] if terms.bias is None else [terms.bias.unsqueeze(-1).flatten(1)]
    for table in rules.tables:
        values = _look_up(table, place, tokens)
        is_on = values if values.dtype == torch.bool else is_above_lowest(values)
        keep &= is_on.any(dim=1)
        bias = torch.zeros_like(values, dtype=dtype) if values.dtype == torch.bool else values
        says_no_more = values.size(1) == 1 and not (bias.requires_grad or bool(bias[keep].any()))
        added += [] if says_no_more else [bias.to(dtype).masked_fill(~is_on, -math.inf)]
    terms = terms._replace(bias=sum(added).squeeze(1)) if added else terms
    if bool(keep.all()):
        return graph, terms
    bias, gate = (None if values is None else values[keep] for values in terms[:2])
    return graph.select_edges(keep), terms._replace(bias=bias, gate=gate)


def _look_up(table: Tensor, place: EdgePlaces, tokens: PaddedTokens) -> Tensor:
    """Return a table's values on the edges, ``[num_edges, heads or 1]``."""
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
