"""Attention along a graph, for every :class:`Placement` of keys and values.

All callers, such as layers and decoders, differ in the placement that they pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._tensors import accumulated, without_autocast
from graphattn.functional.checks import (
    check_arguments,
    check_features,
    check_pair_arguments,
    check_sink,
    check_square,
    scale_of,
)
from graphattn.functional.choose import choose, choose_weighing
from graphattn.functional.diffusion import diffuse_along
from graphattn.functional.folding import fold, repeat_heads, unfold
from graphattn.functional.recursion import diffuse, is_one_hop, spread_teleport
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import MaskedPairs
from graphattn.ops import Backend, EdgeFeatures, LogitTerms, ProjectedFeatures
from graphattn.ops.attention import pairs
from graphattn.ops.attention.schema import dropout_seed
from graphattn.ops.edge_math import dot_with_features, drop_out, edge_logit, sum_features

Teleport = float | Sequence[float] | Tensor
_PIECES, _TOKENS_OF_A_PIECE = 64, 1024
_FEATURES_AT_ONCE = 8  # of half precision, that tensor cores load together


class Placement:
    """A placement: where the keys and values of edges lie in memory. In this base class, the caller
    of :func:`drive` passes all of them. A subclass can fetch them, for example from a cache or from
    other processes: it sets ``has_all_values = False``, and overrides :meth:`edges`, :meth:`keys`
    and :meth:`values`, as :class:`graphattn.placement.Cache` does.

    If each head has its own graph, heads are folded into nodes: the graph then has a node for each
    token and head (:func:`graphattn.functional.folding.fold_heads`).

    Args:
        heads (int, optional): Number of heads, if each head has its own graph; None if all heads
            share the graph.
    """

    # True if the tensors of the caller contain the keys and values of all edges, also after each
    # hop. If False, the driver calls edges(), keys(), values(), pairs() and attend().
    has_all_values = True
    # True if attend() computes one hop, with a backend that can attend to a part of the keys.
    in_parts = False

    def __init__(self, heads: int | None = None):
        self.heads = heads

    def fold(self, query: Tensor, key: Tensor, value: Tensor,
             teleport: Teleport) -> tuple[Tensor, Tensor, Tensor, Teleport]:
        """Return the query, key, value and teleport with a row for each node of the graph. If all
        heads share the graph, they are returned unchanged. Otherwise heads are folded into nodes,
        and a teleport ``[heads]`` becomes ``[heads * tokens, 1]``."""
        if self.heads is None:
            return query, key, value, teleport
        if isinstance(teleport, Tensor):
            teleport = teleport.repeat_interleave(query.size(0)).unsqueeze(1)
        return *(fold(x, self.heads) for x in (query, key, value)), teleport

    def fold_sink(self, sink: Tensor, num_tokens: int) -> Tensor:
        """Return sinks ``[heads]`` in the shape that kernels expect: ``[1, heads]``, or if each
        head has its own graph ``[heads * num_tokens, 1]``."""
        if self.heads is None:
            return sink.unsqueeze(0)
        return sink.repeat_interleave(num_tokens).unsqueeze(1)

    def edges(self, graph: BipartiteGraph) -> BipartiteGraph:
        """Return ``graph`` with its keys numbered as the rows that :meth:`keys` returns."""
        return graph

    def keys(self, key: Tensor) -> Tensor:
        """Return the keys that the edges need. ``key`` contains the keys of the caller's tokens."""
        return key

    def values(self, value: Tensor, hop: int) -> Tensor:
        """Return the values that the edges need at message-passing step ``hop``, counted from 0, in
        the order of :meth:`keys`. ``value`` contains the values of the caller's tokens before this
        step."""
        return value

    def pairs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the edges need at the first message-passing step, from
        :meth:`keys` and :meth:`values`."""
        return self.keys(key), self.values(value, 0)

    def attend(self, kernel: Backend, query: Tensor, key: Tensor, value: Tensor,
               terms: LogitTerms) -> Tensor:
        """Return the output of one message-passing step (hop), given the keys and values of the
        caller. The driver calls this method only if :attr:`in_parts` is True."""
        raise NotImplementedError

    def put(self, out: Tensor) -> Tensor:
        """Return the output of the graph's nodes with a row for each query of the caller:
        ``[num_queries, heads, channels]``."""
        return out if self.heads is None else unfold(out, self.heads)


LOCAL = Placement()


def drive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph | MaskedPairs,
    terms: LogitTerms,
    hops: int | float,
    teleport: Teleport,
    placement: Placement = LOCAL,
    *,
    backend: str | Backend = 'auto',
    needs_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return attention along a graph over some hops, and the weights of one hop if they are
    needed."""
    # query: [num_queries, heads, channels]; key, value: as the placement expects. Bias and gate may
    # be [num_edges], sinks are [heads], and a scale of None means 1 / sqrt(channels).
    tokens = query
    query, key, value, teleport = placement.fold(query, key, value, teleport)
    is_plain, num_keys = is_one_hop(hops, teleport), None
    if not placement.has_all_values:
        graph, num_keys = placement.edges(graph), key.size(0)
    bias, gate, scale, dropout_p, softcap, sink, features = terms
    if isinstance(graph, MaskedPairs):
        check_pair_arguments(query, key, value, graph, terms, needs_weights)
        backend = pairs.MULTIPLIED if graph.multiply else pairs.BACKEND
    else:
        bias, gate = check_arguments(query, key, value, graph, bias, gate, num_keys)
    if sink is not None:
        sink = placement.fold_sink(check_sink(sink, tokens), tokens.size(0))
    scale = scale_of(query) if scale is None else scale
    terms = terms._replace(bias=bias, gate=gate, scale=scale, sink=sink)
    if features is not None:
        if not is_plain:
            raise ValueError(f"'hops' must be 1, without a teleport, if edges have features, "
                             f"because features are added to the values of one hop only (got "
                             f"{hops}); use 'edge_bias' and 'edge_gate' for several hops")
        check_features(tokens, value, graph, features)
        features = _pad_features(features)
        at_query = _project(tokens, features.projection)
        at_query = at_query if placement.heads is None else fold(at_query, placement.heads)
        terms = terms._replace(features=EdgeFeatures(at_query, features.attr))
    if is_plain:
        out, weight = _one_hop(query, key, value, graph, terms, placement, backend, needs_weights)
    else:
        out, weight = _several_hops(query, key, value, graph, terms, hops, teleport, placement,
                                    backend, needs_weights)
    if features is None:
        out = placement.put(out)
    else:
        out, sums = map(placement.put, out)
        out = out + _project(sums, features.projection.mT)
    return out, weight.to(query.dtype) if needs_weights else None


def _pad_features(features: ProjectedFeatures) -> ProjectedFeatures:
    # To a multiple of 8, for tensor cores: on an H200, gradients of the projection of 11 features
    # took 8 times as long as those of 16.
    attr, projection = features
    missing = -attr.size(1) % _FEATURES_AT_ONCE
    if missing == 0 or attr.device.type != 'cuda' or attr.element_size() > 2:
        return features
    return ProjectedFeatures(F.pad(attr, (0, missing)), F.pad(projection, (0, missing)))


def _project(x: Tensor, matrices: Tensor) -> Tensor:
    # The gradient of a matrix is a sum over all tokens. A GPU may give the product of a head
    # to one program; products of pieces of the tokens employ more. Not timed.
    is_ragged = x.device.type == 'cuda' and x.dim() == 3
    pieces = min(_PIECES, len(x) // _TOKENS_OF_A_PIECE) if is_ragged else 0
    with without_autocast(x.device):
        if pieces < 2:
            return torch.einsum('...ha,hab->...hb', x, matrices)
        padded = F.pad(x, (0, 0, 0, 0, 0, -len(x) % pieces)).unflatten(0, (pieces, -1))
        out = torch.einsum('pqha,phab->pqhb', padded, matrices.expand(pieces, -1, -1, -1))
        return out.flatten(0, 1)[:len(x)]


def _one_hop(
    query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph, terms: LogitTerms,
    placement: Placement, backend: str | Backend, needs_weights: bool,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor | None]:
    kernel = backend if isinstance(backend, Backend) else choose(
        backend, query, key, value, graph, terms, needs_weights=needs_weights,
        in_parts=placement.in_parts)
    features = terms.features
    attend = kernel.attention if features is None else kernel.attention_with_features
    is_wide = features is not None and features.attr.size(1) > kernel.max_channels
    is_fused = not (attend is None or needs_weights or is_wide or kernel.lacks(terms))
    with without_autocast(query.device):
        if not placement.has_all_values:
            if (is_fused and features is None and placement.in_parts
                    and kernel.attention_part is not None):
                return placement.attend(kernel, query, key, value, terms), None
            key, value = placement.pairs(key, value)
        if not (kernel.supports_gqa and is_fused):
            key, value = (repeat_heads(x, query.size(1)) for x in (key, value))
        if is_fused:
            return attend(query, key, value, graph, terms), None
        weight = weigh(kernel, query, key, graph, terms)
        out = kernel.weighted_sum(weight, accumulated(value), graph).to(query.dtype)
        if features is not None:
            out = out, sum_features(weight, features, graph.query).to(query.dtype)
        # with features, ``out`` is a pair: sums of values and of features
        return out, weight


def _several_hops(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                  terms: LogitTerms, hops: int | float, teleport: Teleport, placement: Placement,
                  backend: str | Backend, needs_weights: bool) -> tuple[Tensor, Tensor | None]:
    if hops == math.inf and not placement.has_all_values:
        raise ValueError("'hops' must be finite with a placement that fetches keys and values "
                         "before each hop (got inf); pass a number of hops")
    value = repeat_heads(value, query.size(1))
    spread = spread_teleport(teleport, hops, value)
    kernel = backend if isinstance(backend, Backend) else choose_weighing(
        backend, query.device, max(query.size(-1), value.size(-1)))
    with without_autocast(graph.device):
        key = repeat_heads(placement.keys(key), query.size(1))
        if placement.has_all_values:
            check_square(graph)
            is_plain = len(spread) > 0 and hops != math.inf and not needs_weights
            if is_plain and kernel.diffused_attention is not None:
                return kernel.diffused_attention(query, key, value, graph, spread, terms), None
            weight = weigh(kernel, query, key, graph, terms)
            return diffuse_along(kernel, weight, value, graph, spread, hops), weight
        weight, hop = weigh(kernel, query, key, graph, terms), count()
        # before each hop, ``placement`` fetches the values of all keys
        out = diffuse(
            lambda weight, z: kernel.weighted_sum(weight, placement.values(z, next(hop)), graph),
            weight, accumulated(value), spread.unsqueeze(-1), to_the_limit=False)
        return out.to(value.dtype), weight


def weigh(kernel: Backend, query: Tensor, key: Tensor, graph: BipartiteGraph,
          terms: LogitTerms) -> Tensor:
    """Return the attention weights of edges after dropout, ``[num_edges, heads]``."""
    if terms.features is not None:
        dot = dot_with_features(EdgeFeatures(*map(accumulated, terms.features)), graph.query)
        terms = terms._replace(bias=edge_logit(dot, terms))
    weight = kernel.attention_weights(accumulated(query), accumulated(key), graph, terms)
    if terms.dropout_p == 0:
        return weight
    # the same weights as in fused kernels with the same seed
    return drop_out(weight, dropout_seed(terms.dropout_p, graph.device), terms.dropout_p)
