"""Checks of arguments, which kernels do not repeat."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphattn._checks import (
    check_dropout,
    check_floating,
    check_has_numbers,
    check_number,
    check_ptr,
)
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops import ProjectedFeatures


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    num_keys: int | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Check the arguments of :func:`edge_attention`. Return bias and gate as kernels expect them,
    each ``[num_edges, heads or 1]`` or None.

    ``key`` and ``value`` have a row for each key of the graph, or ``num_keys`` rows if an exchange
    fetches the others later.
    """
    _check_graph(graph)
    device, num_keys = graph.device, graph.num_keys if num_keys is None else num_keys
    check_floating(query=query, key=key, value=value)
    for name, tensor, nodes, num_nodes in (('query', query, 'queries', graph.num_queries),
                                           ('key', key, 'keys', num_keys),
                                           ('value', value, 'keys', num_keys)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must be of query's dtype {query.dtype} (got "
                            f"{tensor.dtype})")
        if tensor.dim() != 3 or tensor.size(0) != num_nodes:
            raise ValueError(f"'{name}' must be [nodes, heads, channels] with {num_nodes} {nodes} "
                             f"(got shape {tuple(tensor.shape)})")
        if tensor.device != device:
            raise ValueError(f"'{name}' must be on {device}, where the graph is (got "
                             f"{tensor.device})")
    if query.size(1) == 0:
        raise ValueError(f"'query' must have at least one head (got shape {tuple(query.shape)})")
    _check_heads(query, key, value)
    if edge_bias is edge_gate is None:
        return None, None
    return tuple(values if values is None else check_edge_values(name, values, query, graph)
                 for name, values in (('edge_bias', edge_bias), ('edge_gate', edge_gate)))


def _check_graph(graph: BipartiteGraph) -> None:
    if not isinstance(graph, BipartiteGraph):
        if isinstance(graph, PairMask):
            raise TypeError("'graph' must be a BipartiteGraph (got PairMask, a soft mask without "
                            "edges); use pair_attention for soft masks")
        raise TypeError(f"'graph' must be a BipartiteGraph (got {type(graph).__name__}); see "
                        f"BipartiteGraph.from_edge_index, from_mask, from_scipy, from_networkx")
    graph.check_unchanged()


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    if key.size(1) == 0 or query.size(1) % key.size(1) != 0:
        raise ValueError(f"'key' must have a number of heads that divides the {query.size(1)} "
                         f"heads of 'query' (got {key.size(1)})")
    if value.size(1) != key.size(1):
        raise ValueError(f"'value' must have {key.size(1)} heads, as 'key' has (got "
                         f"{value.size(1)})")
    if key.size(2) != query.size(2):
        raise ValueError(f"'key' must have {query.size(2)} channels, as 'query' has (got "
                         f"{key.size(2)})")


def check_diffused(alpha: Tensor, value: Tensor, graph: BipartiteGraph) -> None:
    _check_graph(graph)
    check_square(graph)
    check_floating(value=value, alpha=alpha)
    if value.dim() != 3 or value.size(0) != graph.num_queries:
        raise ValueError(f"'value' must be [num_tokens, heads, channels] with {graph.num_queries} "
                         f"tokens (got shape {tuple(value.shape)})")
    if alpha.shape != (graph.num_edges, value.size(1)):
        raise ValueError(f"'alpha' must be [num_edges, heads] with {graph.num_edges} edges and "
                         f"{value.size(1)} heads (got shape {tuple(alpha.shape)})")
    for name, tensor in (('value', value), ('alpha', alpha)):
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, where the graph is (got "
                             f"{tensor.device})")


def check_square(graph: BipartiteGraph) -> None:
    """Raise unless every segment of a graph has equal numbers of queries and keys, which can then
    be the same tokens."""
    if not graph.is_square:
        raise ValueError(f"'graph' must have equal numbers of keys and queries in every segment, "
                         f"because hops use the same tokens as keys and queries (got {graph})")


def check_numbers(scale: float | None, dropout_p: float, query: Tensor) -> float:
    """Check the scalar arguments of all attention functions, and return the scale."""
    check_scale_and_dropout(scale, dropout_p)
    return scale_of(query) if scale is None else scale


def check_scale_and_dropout(scale: float | None, dropout_p: float) -> None:
    check_dropout(dropout_p=dropout_p)
    if scale is not None:
        check_number('scale', scale, 'finite')


def check_softcap(softcap: float | None) -> None:
    if softcap is not None:
        check_number('softcap', softcap, 'positive and finite')


def check_sink(sink: Tensor, query: Tensor) -> Tensor:
    """Check sinks ``[heads]``, and return the sinks in the dtype of the computation."""
    check_floating(sink=sink)
    if sink.device != query.device:
        raise ValueError(f"'sink' must be on {query.device}, where query is (got {sink.device})")
    if sink.shape != (query.size(1),):
        raise ValueError(f"'sink' must be [heads] = [{query.size(1)}], one logit for each head of "
                         f"query (got shape {tuple(sink.shape)})")
    return sink.to(torch.promote_types(query.dtype, torch.float))


def scale_of(query: Tensor) -> float:
    """Return the default scale of dot products. This scale is always finite, so it is not checked;
    traced code with a symbolic number of channels could not check it."""
    return 1 / math.sqrt(max(query.size(-1), 1))


def check_pair_arguments(query: Tensor, key: Tensor, value: Tensor, pairs: MaskedPairs) -> None:
    """Check the arguments of :func:`pair_attention`."""
    mask, ptr = pairs.mask, pairs.ptr
    if not isinstance(mask, PairMask):
        raise TypeError(f"'mask' must be a PairMask (got {type(mask).__name__}); use "
                        f"edge_attention for graphs")
    check_floating(query=query, key=key, value=value)
    for name, tensor in (('query', query), ('key', key), ('value', value)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must be of query's dtype {query.dtype} (got "
                            f"{tensor.dtype})")
        heads = mask.heads if tensor is query else tensor.size(1)
        if tensor.dim() != 3 or tensor.shape[:2] != (query.size(0), heads):
            raise ValueError(f"'{name}' must be [num_tokens, heads, channels] with "
                             f"{query.size(0)} tokens and the mask's {mask.heads} heads (got "
                             f"shape {tuple(tensor.shape)})")
        if tensor.device != mask.device:
            raise ValueError(f"'{name}' must be on {mask.device}, where the mask is (got "
                             f"{tensor.device})")
    _check_heads(query, key, value)
    check_ptr('ptr', ptr, query.size(0), mask.device)
    check_has_numbers('ptr', ptr)


def check_edge_values(
    name: str, values: Tensor | None, query: Tensor, graph: BipartiteGraph,
) -> Tensor | None:
    """Check values on edges, and return the values as ``[num_edges, heads or 1]`` in the dtype of
    the computation, or None."""
    if values is None:
        return None
    check_floating(**{name: values})
    if values.device != query.device:
        raise ValueError(f"'{name}' must be on {query.device}, where query is (got "
                         f"{values.device})")
    if values.shape == (graph.num_edges,):
        values = values.unsqueeze(1)
    elif values.shape != (graph.num_edges, query.size(1)):
        raise ValueError(f"'{name}' must be [num_edges] or [num_edges, heads] with "
                         f"{graph.num_edges} edges and {query.size(1)} heads (got shape "
                         f"{tuple(values.shape)})")
    return values.to(torch.promote_types(query.dtype, torch.float))


def check_features(query: Tensor, value: Tensor, graph: BipartiteGraph,
                   features: ProjectedFeatures) -> None:
    """Raise unless edge features and their projection fit query, value and graph."""
    edge_attr, projection = features
    check_floating(edge_attr=edge_attr, projection=projection)
    for name, tensor in (('edge_attr', edge_attr), ('projection', projection)):
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, where the graph is (got "
                             f"{tensor.device})")
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must be of query's dtype {query.dtype} (got "
                            f"{tensor.dtype})")
    if value.size(-1) != query.size(2):
        raise ValueError(f"'value' must have {query.size(2)} channels, as 'query' has, because "
                         f"features are added to both keys and values (got {value.size(-1)})")
    if edge_attr.dim() != 2 or edge_attr.size(0) != graph.num_edges:
        raise ValueError(f"'edge_attr' must be [num_edges, size] with {graph.num_edges} edges (got "
                         f"shape {tuple(edge_attr.shape)})")
    if projection.shape != (*query.shape[1:], edge_attr.size(1)):
        raise ValueError(f"'projection' must be [heads, channels, size] = "
                         f"{[*query.shape[1:], edge_attr.size(1)]} (got shape "
                         f"{tuple(projection.shape)})")
