"""Checks of the arguments of attention functions. Kernels have no checks of their own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphattn._checks import (
    check_dropout,
    check_dtype,
    check_floating,
    check_has_numbers,
    check_number,
    check_on,
    check_ptr,
    check_shape,
)
from graphattn.graphs.graph import BipartiteGraph, check_graph
from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops import LogitTerms, ProjectedFeatures


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    num_keys: int | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Check the arguments of :func:`edge_attention`, and return bias and gate for kernels."""
    # each [num_edges, heads or 1] or None; num_keys differs from the graph's if a placement fetches
    # keys later
    if not isinstance(graph, BipartiteGraph):
        check_graph(graph)
    graph.check_unchanged()
    num_keys = graph.num_keys if num_keys is None else num_keys
    _check_nodes(query, key, value, (graph.num_queries, num_keys), graph.device, 'the graph')
    if edge_bias is edge_gate is None:
        return None, None
    return tuple(values if values is None else check_edge_values(name, values, query, graph)
                 for name, values in (('edge_bias', edge_bias), ('edge_gate', edge_gate)))


def check_pair_arguments(query: Tensor, key: Tensor, value: Tensor, pairs: MaskedPairs,
                         terms: LogitTerms, needs_weights: bool) -> None:
    if needs_weights or not terms.bias is terms.gate is terms.features is None:
        raise ValueError("'graph' must be a BipartiteGraph if edges have a bias, a gate or "
                         "features, or weights are requested (got a soft mask, which has no "
                         "edges); freeze() turns a learned mask into a graph")
    mask, ptr = pairs.mask, pairs.ptr
    if not isinstance(mask, PairMask):
        raise TypeError(f"'mask' must be a PairMask (got {type(mask).__name__}); call "
                        f"edge_attention for a BipartiteGraph")
    check_floating(query=query)
    size = query.size(0) if query.dim() else 0
    _check_nodes(query, key, value, (size, size), mask.device, 'the mask')
    check_shape('query', query, (size, mask.heads, 'channels'), ', with the heads of the mask')
    check_ptr('ptr', ptr, size, mask.device)
    check_has_numbers('ptr', ptr)


def _check_nodes(query: Tensor, key: Tensor, value: Tensor, sizes: tuple[int, int],
                 device: torch.device, of: str) -> None:
    check_floating(query=query, key=key, value=value)
    num_queries, num_keys = sizes
    for name, tensor, size in (('query', query, num_queries), ('key', key, num_keys),
                               ('value', value, num_keys)):
        if (tensor.dtype != query.dtype or tensor.device != device or tensor.dim() != 3
                or tensor.size(0) != size):  # at once, because every call of every layer asks
            check_dtype(name, tensor, query.dtype, "'query'")
            check_shape(name, tensor, (size, 'heads', 'channels'))
            check_on(name, tensor, device, of)
    heads, channels = query.shape[1:]
    if heads == 0:
        raise ValueError(f"'query' must have at least one head (got shape {tuple(query.shape)})")
    if key.size(1) == 0 or heads % key.size(1) != 0:
        raise ValueError(f"'key' must have as many heads as 'query', {heads}, or a divisor of this "
                         f"number (got {key.size(1)} heads)")
    if key.size(2) != channels or value.size(1) != key.size(1):
        check_shape('key', key, (num_keys, key.size(1), channels), ", with the channels of 'query'")
        check_shape('value', value, (num_keys, key.size(1), 'channels'),
                    ", with the heads of 'key'")


def check_diffused(alpha: Tensor, value: Tensor, graph: BipartiteGraph) -> None:
    check_graph(graph)
    graph.check_unchanged()
    check_square(graph)
    check_floating(value=value, alpha=alpha)
    check_shape('value', value, (graph.num_queries, 'heads', 'channels'))
    check_shape('alpha', alpha, (graph.num_edges, value.size(1)),
                ", a weight for each edge and each head of 'value'")
    check_on('value', value, graph.device, 'the graph')
    check_on('alpha', alpha, graph.device, 'the graph')


def check_square(graph: BipartiteGraph) -> None:
    if not graph.is_square:
        raise ValueError(f"'graph' must have equal numbers of keys and queries in every segment, "
                         f"because each hop uses the same tokens as keys and as queries (got "
                         f"{graph})")


def check_terms(terms: LogitTerms) -> None:
    check_dropout(dropout_p=terms.dropout_p)
    if terms.scale is not None:
        check_number('scale', terms.scale, 'finite')
    if terms.softcap is not None:
        check_number('softcap', terms.softcap, 'positive and finite')


def check_sink(sink: Tensor, query: Tensor) -> Tensor:
    """Check the sink ``[heads]``, and return it in at least float32."""
    check_floating(sink=sink)
    check_on('sink', sink, query.device, "'query'")
    check_shape('sink', sink, (query.size(1),), ", one logit for each head of 'query'")
    return sink.to(torch.promote_types(query.dtype, torch.float))


def scale_of(query: Tensor) -> float:
    """Return the default scale of dot products, ``1 / sqrt(channels)``."""
    # in compiled code channels may be symbolic, so callers must not test whether it is finite
    return 1 / math.sqrt(max(query.size(-1), 1))


def check_edge_values(
    name: str, values: Tensor | None, query: Tensor, graph: BipartiteGraph,
) -> Tensor | None:
    """Check a bias or gate, and return it as ``[num_edges, heads or 1]`` in at least float32."""
    if values is None:
        return None
    check_floating(**{name: values})
    if values.device != query.device:
        check_on(name, values, query.device, "'query'")
    if values.shape == (graph.num_edges,):
        values = values.unsqueeze(1)
    else:
        check_shape(name, values, (graph.num_edges, query.size(1)),
                    ', the numbers of edges and heads, or one value for each edge')
    return values.to(torch.promote_types(query.dtype, torch.float))


def check_features(query: Tensor, value: Tensor, graph: BipartiteGraph,
                   features: ProjectedFeatures) -> None:
    edge_attr, projection = features
    check_floating(edge_attr=edge_attr, projection=projection)
    for name, tensor in (('edge_attr', edge_attr), ('projection', projection)):
        check_on(name, tensor, graph.device, 'the graph')
        check_dtype(name, tensor, query.dtype, "'query'")
    check_shape('value', value, ('nodes', 'heads', query.size(2)),
                ", with the channels of 'query', because features are added to keys and values")
    check_shape('edge_attr', edge_attr, (graph.num_edges, 'size'), ', a row for each edge')
    check_shape('projection', projection, (*query.shape[1:], edge_attr.size(1)),
                ": heads, channels, and columns of 'edge_attr'")
