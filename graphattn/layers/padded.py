"""Attention of padded sequences, as models of other libraries compute it. The graphs contain only
the tokens, without padding."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphattn.functional.checks import check_terms
from graphattn.functional.drive import Teleport, drive
from graphattn.functional.folding import repeat_heads
from graphattn.functional.recursion import is_one_hop
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.masks import is_above_lowest
from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops import LogitTerms
from graphattn.patterns import Causal
from graphattn.placement.padded import EdgePlaces, Padded, PaddedTokens
from graphattn.sources import ContentClusterSource, GraphSource, PatternSource
from graphattn.sources.base import add_terms, check_returned


class PairRules(NamedTuple):
    """Rules that restrict the edges of a source, or add biases to their logits."""

    # allows: of sequence, query's and key's position of each pair, whether they attend. tables:
    # [batch or 1, heads or 1, num_queries, num_keys], bool (True: attend) or added to logits.
    causal: bool = False
    allows: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    tables: Sequence[Tensor] = ()

    @property
    def are_none(self) -> bool:
        return not self.causal and self.allows is None and not self.tables


@torch.compiler.disable(reason='the warning depends on the values of the mask')
def warn_of_zeros_and_ones(name: str, mask: Tensor) -> None:
    """Warn of a floating mask, which is added to logits, if it looks like a boolean mask."""
    if not mask.is_floating_point() or mask.numel() == 0 or bool(mask.amax() != 1):
        return
    if bool(((mask == 0) | (mask == 1)).all()):
        warnings.warn(f"'{name}' is a floating mask of 0 and 1, which is added to logits and "
                      f"excludes no key; pass a boolean mask to exclude keys", stacklevel=2)


@torch.compiler.disable(reason='the edges depend on which slots are tokens')
def attend_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    along: GraphSource | BipartiteGraph,
    tokens: PaddedTokens,
    rules: PairRules,
    terms: LogitTerms,
    diffusion: tuple[int | float, Teleport],
    *,
    backend: str,
    needs_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return attention among the tokens of padded sequences, 0 for padding, and the dense weights
    or None."""
    # query [batch, num_queries, heads, channels], key and value [batch, num_keys, num_kv_heads,
    # ...]; terms without what the source adds; diffusion: hops and teleport, which may be [heads].
    _warn_of_empty(tokens)
    check_terms(terms)
    is_plain = is_one_hop(*diffusion)
    if not (is_plain or tokens.is_square):
        raise ValueError(f"'hops' must be 1 and 'teleport' 0 unless the keys are the tokens of the "
                         f"queries, because each hop uses the same tokens as keys and as queries "
                         f"(got hops={diffusion[0]}); if the keys are in a cache, pass "
                         f"use_cache=False")
    heads, query = query.size(2), tokens.queries(query)
    graph = along
    if not isinstance(along, BipartiteGraph):  # a source, or a wrapped one
        graph, rules = _ask(along, query, key, tokens, rules)
        if isinstance(graph, PairMask):
            _check_alone(rules, needs_weights)
            graph = MaskedPairs(graph, tokens.ptr)
        else:
            terms = add_terms(along, graph, terms)
    if not rules.are_none:
        graph, terms = _obey(rules, graph, terms, tokens, query.dtype)
    owners = heads if graph.num_queries != query.size(0) else None
    placement = Padded(tokens, graph, owners, hops_end=is_plain)
    out, weight = drive(query, key, value, placement.graph, terms, *diffusion, placement,
                        backend=backend, needs_weights=needs_weights)
    if weight is not None:
        weight = _dense(weight, graph, tokens, heads)
    return out, weight


def _warn_of_empty(tokens: PaddedTokens) -> None:
    if tokens.is_token is None or tokens.num_keys == 0 or 0 not in tokens.lengths:
        return
    warnings.warn(f"the padding mask leaves no token in sequence {tokens.lengths.index(0)}, so the "
                  f"output of this sequence is 0; check that the mask is not inverted "
                  f"(transformers' 'attention_mask' is 1 at tokens, torch's 'key_padding_mask' is "
                  f"True at padding)",
                  stacklevel=2)


def _ask(source: GraphSource, query: Tensor, key: Tensor, tokens: PaddedTokens,
         rules: PairRules) -> tuple[BipartiteGraph | PairMask, PairRules]:
    # query is without padding, but key is padded; returns those rules that still apply
    if isinstance(source, PatternSource):
        _check_length(source, tokens)
        within = Causal() if rules.causal else None
        graph = source.span_graph(tokens.lengths, tokens.spans, tokens.device, within=within)
        return graph, rules._replace(causal=False)
    key = repeat_heads(tokens.keys(key), query.size(1)) if source.per_head else tokens.keys(key)
    if isinstance(source, ContentClusterSource) and tokens.first_key == 0:
        _check_length(source, tokens)
        ptrs = dict(ptr=tokens.ptr) if tokens.is_square else dict(
            ptr=tokens.query_ptr, key_ptr=tokens.ptr, first=tokens.first_queries)
        return source(query, key, **ptrs, causal=rules.causal), rules._replace(causal=False)
    if tokens.same_tokens and not tokens.is_square:
        raise ValueError(f"the source must be a pattern if a cache or a prefix adds keys before "
                         f"the queries, because other sources need the tokens of all keys (got "
                         f"{type(source).__name__}); omit the prefix, or generate with "
                         f"use_cache=False")
    if tokens.is_square:
        graph = source(query, key, tokens.ptr)
    else:
        graph = source(query, key, tokens.query_ptr, key_ptr=tokens.ptr)
    check_returned(source, graph, query, tokens.ptr)
    return graph, rules


def _check_length(source: GraphSource, tokens: PaddedTokens) -> None:
    longest = max(tokens.lengths, default=0)
    if source.max_length is not None and longest > source.max_length:
        raise ValueError(f"sequences must have at most {source.max_length} tokens, the "
                         f"'max_length' of the source (got {longest})")


def _check_alone(rules: PairRules, needs_weights: bool) -> None:
    if not rules.are_none:
        raise ValueError("the source must return graphs if masks other than padding are used, such "
                         "as causal masks (got a source of soft masks); freeze the soft masks")
    if needs_weights:
        raise ValueError("the source must return graphs if attention weights are requested (got a "
                         "source of soft masks); request no weights")


def _obey(rules: PairRules, graph: BipartiteGraph, terms: LogitTerms, tokens: PaddedTokens,
          dtype: torch.dtype) -> tuple[BipartiteGraph, LogitTerms]:
    # biases of the rules are converted to dtype and added to the bias of terms
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
    table = table.movedim(1, -1)  # [batch or 1, queries, keys, heads or 1]
    table = table.expand(tokens.batch, *table.shape[1:])
    where = place.sequence, place.query - tokens.first_query, place.key - tokens.first_key
    if place.head is None:
        return table[where]
    head = place.head if table.size(-1) > 1 else torch.zeros_like(place.head)
    return table[*where, head].unsqueeze(1)


def _dense(weight: Tensor, graph: BipartiteGraph, tokens: PaddedTokens, heads: int) -> Tensor:
    sizes = tokens.batch, tokens.num_queries, tokens.num_keys
    if weight.numel() == math.prod(sizes) * heads:  # all pairs, in the order of a table
        return (weight.view(*sizes, heads).movedim(-1, 1) if weight.size(1) == heads else
                weight.view(heads, *sizes).transpose(0, 1))
    place, dense = tokens.place(graph), weight.new_zeros(*sizes, heads)
    where = place.sequence, place.query - tokens.first_query, place.key - tokens.first_key
    if place.head is not None:
        where, weight = (*where, place.head), weight.squeeze(1)
    return dense.index_put(where, weight).movedim(-1, 1)
