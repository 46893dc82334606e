"""The driver of attention along a graph, for every placement of keys and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from graphattn._tensors import without_autocast
from graphattn.functional.checks import (
    check_arguments,
    check_features,
    check_pair_arguments,
    check_sink,
    check_square,
    scale_of,
)
from graphattn.functional.choose import accumulated, choose, choose_weighing
from graphattn.functional.diffusion import diffuse_along
from graphattn.functional.folding import fold, repeat_heads, unfold
from graphattn.functional.recursion import diffuse, is_one_hop, spread_teleport
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import MaskedPairs
from graphattn.ops import Backend, EdgeFeatures, LogitTerms
from graphattn.ops.attention import pairs
from graphattn.ops.attention.schema import dropout_seed
from graphattn.ops.edge_math import dot_with_features, drop_out, edge_logit, sum_features

Teleport = float | Sequence[float] | Tensor


class Placement:
    """The plain placement: keys and values are the given tensors.

    Args:
        heads (int, optional): Number of heads with graphs of their own, which are folded into
            nodes; all heads share a graph if omitted.
    """

    # Whether the given keys and values are those of all edges, after each hop too. Only otherwise,
    # edges(), keys(), values(), pairs() and attend() are called.
    has_all_values = True
    in_parts = False  # a backend that attends to parts of the keys computes one hop by attend()

    def __init__(self, heads: int | None = None):
        self.heads = heads

    def fold(self, query: Tensor, key: Tensor, value: Tensor,
             teleport: Teleport) -> tuple[Tensor, Tensor, Tensor, Teleport]:
        """Fold tensors into the nodes of the graph; the teleport too if every head has its own."""
        if self.heads is None:
            return query, key, value, teleport
        if isinstance(teleport, Tensor):
            teleport = teleport.repeat_interleave(query.size(0)).unsqueeze(1)
        return *(self.fold_nodes(x) for x in (query, key, value)), teleport

    def fold_nodes(self, x: Tensor) -> Tensor:
        """Fold values of tokens and heads into the nodes of the graph."""
        return x if self.heads is None else fold(repeat_heads(x, self.heads))

    def fold_sink(self, sink: Tensor, num_tokens: int) -> Tensor:
        """Return the sinks ``[heads]`` of the nodes' heads, ``[num_queries or 1, heads]``."""
        if self.heads is None:
            return sink.unsqueeze(0)
        return sink.repeat_interleave(num_tokens).unsqueeze(1)

    def edges(self, graph: BipartiteGraph) -> BipartiteGraph:
        """Return the graph on the keys that :meth:`keys` returns."""
        return graph

    def keys(self, key: Tensor) -> Tensor:
        """Return the keys that edges start from."""
        return key

    def values(self, value: Tensor, hop: int) -> Tensor:
        """Return the values of those keys before a hop, given the own values."""
        return value

    def pairs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and the values of one hop."""
        return self.keys(key), self.values(value, 0)

    def attend(self, kernel: Backend, query: Tensor, key: Tensor, value: Tensor,
               terms: LogitTerms) -> Tensor:
        """Return the output of one hop, given the own keys and values, if :attr:`in_parts`."""
        raise NotImplementedError

    def put(self, out: Tensor) -> Tensor:
        """Return the output in the layout of the layer's queries."""
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
    r"""Compute attention along a graph, and further hops.

    Args:
        query (Tensor): As in :func:`graphattn.functional.edge_attention`, but heads may have graphs
            of their own. ``key`` and ``value`` are in the form that the placement expects.
        graph (BipartiteGraph or MaskedPairs): The edges, or all pairs under a soft mask.
        terms (LogitTerms): Bias and gate may be ``[num_edges]``, sinks are ``[heads]``; the scale
            is :math:`1 / \sqrt{C}` if it is ``None``. Edge features need ``hops=1``, and come
            without a softcap.
        hops (int or float): As in :func:`graphattn.functional.attention_diffusion`.
        teleport (float, sequence of float or Tensor): As there.
        placement (Placement): The placement of keys and values.
        backend (str or Backend): As in :func:`graphattn.functional.edge_attention`; or a backend
            that returns weights.
        needs_weights (bool): Whether to return the weights too.

    Returns:
        The output, and the weights of one hop ``[num_edges, heads]`` if requested.

    Raises:
        TypeError, ValueError: As :func:`graphattn.functional.edge_attention`; also for edge
        features with several hops, and for edge terms with a soft mask.
    """
    tokens = query
    query, key, value, teleport = placement.fold(query, key, value, teleport)
    is_plain, num_keys = is_one_hop(hops, teleport), None
    if not placement.has_all_values:
        graph, num_keys = placement.edges(graph), key.size(0)
    bias, gate, scale, dropout_p, softcap, sink, features = terms
    if isinstance(graph, MaskedPairs):
        _check_no_edges(terms, needs_weights)
        check_pair_arguments(query, key, value, graph)
        backend = pairs.BACKEND
    else:
        bias, gate = check_arguments(query, key, value, graph, bias, gate, num_keys)
    if sink is not None:
        sink = placement.fold_sink(check_sink(sink, tokens), tokens.size(0))
    scale = scale_of(query) if scale is None else scale
    terms = LogitTerms(bias, gate, scale, dropout_p, softcap, sink, features)
    if features is not None:
        _check_one_hop(is_plain, hops)
        check_features(tokens, value, graph, features)
        at_query = placement.fold_nodes(_project(tokens, 'qhc,hcs->qhs', features.projection))
        terms = terms._replace(features=EdgeFeatures(at_query, features.attr))
    if is_plain:
        out, weight = _one_hop(query, key, value, graph, terms, placement, backend, needs_weights)
    elif placement.has_all_values:
        out, weight = _several_hops(query, key, value, graph, terms, hops, teleport, backend,
                                    needs_weights)
    else:
        kernel = _weighing(backend, query, value)
        with without_autocast(graph.device):
            key = repeat_heads(placement.keys(key), query.size(1))
            weight = weigh(kernel, query, key, graph, terms)
            out = _placed_hops(kernel, weight, repeat_heads(value, query.size(1)), graph, hops,
                               teleport, placement)
    if features is None:
        out = placement.put(out)
    else:
        out, sums = map(placement.put, out)
        out = out + _project(sums, '...hs,hcs->...hc', features.projection)
    return out, weight.to(query.dtype) if needs_weights else None


def _check_no_edges(terms: LogitTerms, needs_weights: bool) -> None:
    if needs_weights or not terms.bias is terms.gate is terms.features is None:
        raise ValueError("'graph' must be a BipartiteGraph if edges have a bias, a gate or "
                         "features, or weights are requested (got a soft mask, which has no "
                         "edges); freeze() turns a learned mask into a graph")


def _check_one_hop(is_plain: bool, hops: int | float) -> None:
    if not is_plain:
        raise ValueError(f"'hops' must be 1, without a teleport, if edges have features, because "
                         f"nodes do not hold them for the next hop (got {hops}); use 'edge_bias' "
                         f"and 'edge_gate' for several hops")


def _project(x: Tensor, equation: str, projection: Tensor) -> Tensor:
    with without_autocast(x.device):
        return torch.einsum(equation, x, projection)


def _one_hop(
    query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph, terms: LogitTerms,
    placement: Placement, backend: str | Backend, needs_weights: bool,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor | None]:
    """Return the output, together with the sums of edge features if any, and the weights."""
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
        return out, weight


def _several_hops(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                  terms: LogitTerms, hops: int | float, teleport: Teleport,
                  backend: str | Backend, needs_weights: bool) -> tuple[Tensor, Tensor | None]:
    check_square(graph)
    key, value = (repeat_heads(x, query.size(1)) for x in (key, value))
    spread = spread_teleport(teleport, hops, value)
    kernel = _weighing(backend, query, value)
    is_plain = len(spread) > 0 and hops != math.inf and not needs_weights
    with without_autocast(graph.device):
        if is_plain and kernel.diffused_attention is not None:
            return kernel.diffused_attention(query, key, value, graph, spread, terms), None
        weight = weigh(kernel, query, key, graph, terms)
    return diffuse_along(kernel, weight, value, graph, spread, hops), weight


def _placed_hops(kernel: Backend, weight: Tensor, value: Tensor, graph: BipartiteGraph, hops: int,
                 teleport: Teleport, placement: Placement) -> Tensor:
    """Return own values after all hops. Before each hop the values of other keys are fetched."""
    hop, spread = count(), spread_teleport(teleport, hops, value)
    return diffuse(
        lambda weight, z: kernel.weighted_sum(weight, placement.values(z, next(hop)), graph),
        weight, accumulated(value), spread.unsqueeze(-1), to_the_limit=False).to(value.dtype)


def _weighing(backend: str | Backend, query: Tensor, value: Tensor) -> Backend:
    if isinstance(backend, Backend):
        return backend
    return choose_weighing(backend, query.device, max(query.size(-1), value.size(-1)))


def weigh(kernel: Backend, query: Tensor, key: Tensor, graph: BipartiteGraph,
          terms: LogitTerms) -> Tensor:
    """Return the weights of edges after dropout, which is the same as in fused kernels."""
    if terms.features is not None:
        dot = dot_with_features(EdgeFeatures(*map(accumulated, terms.features)), graph.query)
        terms = terms._replace(bias=edge_logit(dot, terms))
    weight = kernel.attention_weights(accumulated(query), accumulated(key), graph, terms)
    if terms.dropout_p == 0:
        return weight
    return drop_out(weight, dropout_seed(terms.dropout_p, graph.device), terms.dropout_p)
