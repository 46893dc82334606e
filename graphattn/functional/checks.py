"""Checks of the arguments of attention functions. Kernels have no checks of their own."""

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
    """Check the arguments of :func:`edge_attention`, and return bias and gate for kernels."""
    # each [num_edges, heads or 1] or None; num_keys differs from the graph's if a placement fetches
    # keys later
    _check_graph(graph)
    device, num_keys = graph.device, graph.num_keys if num_keys is None else num_keys
    check_floating(query=query, key=key, value=value)
    for name, tensor, nodes, num_nodes in (('query', query, 'queries', graph.num_queries),
                                           ('key', key, 'keys', num_keys),
                                           ('value', value, 'keys', num_keys)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must have the dtype of 'query', {query.dtype} (got "
                            f"{tensor.dtype}); pass {name}.to({query.dtype})")
        if tensor.dim() != 3 or tensor.size(0) != num_nodes:
            raise ValueError(f"'{name}' must have shape [{num_nodes}, heads, channels], with one "
                             f"row for each of the {num_nodes} {nodes} of the graph (got shape "
                             f"{tuple(tensor.shape)})")
        if tensor.device != device:
            raise ValueError(f"'{name}' must be on {device}, the device of the graph (got "
                             f"{tensor.device}); pass {name}.to('{device}')")
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
            raise TypeError("'graph' must be a BipartiteGraph (got a PairMask, a soft mask without "
                            "edges); call pair_attention for a PairMask")
        raise TypeError(f"'graph' must be a BipartiteGraph (got {type(graph).__name__}); build a "
                        f"graph with BipartiteGraph.from_edge_index, from_mask, from_scipy or "
                        f"from_networkx")
    graph.check_unchanged()


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    if key.size(1) == 0 or query.size(1) % key.size(1) != 0:
        raise ValueError(f"'key' must have as many heads as 'query', {query.size(1)}, or a divisor "
                         f"of this number (got {key.size(1)} heads)")
    if value.size(1) != key.size(1):
        raise ValueError(f"'value' must have {key.size(1)} heads, like 'key' (got {value.size(1)})")
    if key.size(2) != query.size(2):
        raise ValueError(f"'key' must have {query.size(2)} channels, like 'query' (got "
                         f"{key.size(2)})")


def check_diffused(alpha: Tensor, value: Tensor, graph: BipartiteGraph) -> None:
    _check_graph(graph)
    check_square(graph)
    check_floating(value=value, alpha=alpha)
    if value.dim() != 3 or value.size(0) != graph.num_queries:
        raise ValueError(f"'value' must have shape [{graph.num_queries}, heads, channels], with "
                         f"one row for each token of the graph (got shape {tuple(value.shape)})")
    if alpha.shape != (graph.num_edges, value.size(1)):
        raise ValueError(f"'alpha' must have shape [{graph.num_edges}, {value.size(1)}], with one "
                         f"weight for each edge of the graph and each head of 'value' (got shape "
                         f"{tuple(alpha.shape)})")
    for name, tensor in (('value', value), ('alpha', alpha)):
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, the device of the graph (got "
                             f"{tensor.device}); pass {name}.to('{graph.device}')")


def check_square(graph: BipartiteGraph) -> None:
    """Raise an error unless queries and keys can be the same tokens."""
    if not graph.is_square:
        raise ValueError(f"'graph' must have equal numbers of keys and queries in every segment, "
                         f"because each hop uses the same tokens as keys and as queries (got "
                         f"{graph})")


def check_numbers(scale: float | None, dropout_p: float, query: Tensor) -> float:
    """Check ``scale`` and ``dropout_p``, and return ``scale`` or its default."""
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
    """Check the sink ``[heads]``, and return it in at least float32."""
    check_floating(sink=sink)
    if sink.device != query.device:
        raise ValueError(f"'sink' must be on {query.device}, the device of 'query' (got "
                         f"{sink.device}); pass sink.to('{query.device}')")
    if sink.shape != (query.size(1),):
        raise ValueError(f"'sink' must have shape [{query.size(1)}], one logit for each head of "
                         f"'query' (got shape {tuple(sink.shape)})")
    return sink.to(torch.promote_types(query.dtype, torch.float))


def scale_of(query: Tensor) -> float:
    """Return the default scale of dot products, ``1 / sqrt(channels)``."""
    # in compiled code channels may be symbolic, so callers must not test whether it is finite
    return 1 / math.sqrt(max(query.size(-1), 1))


def check_pair_arguments(query: Tensor, key: Tensor, value: Tensor, pairs: MaskedPairs) -> None:
    mask, ptr = pairs.mask, pairs.ptr
    if not isinstance(mask, PairMask):
        raise TypeError(f"'mask' must be a PairMask (got {type(mask).__name__}); call "
                        f"edge_attention for a BipartiteGraph")
    check_floating(query=query, key=key, value=value)
    for name, tensor in (('query', query), ('key', key), ('value', value)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must have the dtype of 'query', {query.dtype} (got "
                            f"{tensor.dtype}); pass {name}.to({query.dtype})")
        heads = mask.heads if tensor is query else tensor.size(1)
        if tensor.dim() != 3 or tensor.shape[:2] != (query.size(0), heads):
            raise ValueError(f"'{name}' must have shape [{query.size(0)}, {mask.heads}, channels], "
                             f"with the tokens of 'query' and the heads of the mask (got shape "
                             f"{tuple(tensor.shape)})")
        if tensor.device != mask.device:
            raise ValueError(f"'{name}' must be on {mask.device}, the device of the mask (got "
                             f"{tensor.device}); pass {name}.to('{mask.device}')")
    _check_heads(query, key, value)
    check_ptr('ptr', ptr, query.size(0), mask.device)
    check_has_numbers('ptr', ptr)


def check_edge_values(
    name: str, values: Tensor | None, query: Tensor, graph: BipartiteGraph,
) -> Tensor | None:
    """Check a bias or gate, and return it as ``[num_edges, heads or 1]`` in at least float32."""
    if values is None:
        return None
    check_floating(**{name: values})
    if values.device != query.device:
        raise ValueError(f"'{name}' must be on {query.device}, the device of 'query' (got "
                         f"{values.device}); pass {name}.to('{query.device}')")
    if values.shape == (graph.num_edges,):
        values = values.unsqueeze(1)
    elif values.shape != (graph.num_edges, query.size(1)):
        raise ValueError(f"'{name}' must have shape [{graph.num_edges}] or [{graph.num_edges}, "
                         f"{query.size(1)}], the numbers of edges and heads (got shape "
                         f"{tuple(values.shape)})")
    return values.to(torch.promote_types(query.dtype, torch.float))


def check_features(query: Tensor, value: Tensor, graph: BipartiteGraph,
                   features: ProjectedFeatures) -> None:
    edge_attr, projection = features
    check_floating(edge_attr=edge_attr, projection=projection)
    for name, tensor in (('edge_attr', edge_attr), ('projection', projection)):
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, the device of the graph (got "
                             f"{tensor.device}); pass {name}.to('{graph.device}')")
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must have the dtype of 'query', {query.dtype} (got "
                            f"{tensor.dtype}); pass {name}.to({query.dtype})")
    if value.size(-1) != query.size(2):
        raise ValueError(f"'value' must have {query.size(2)} channels, like 'query', because "
                         f"features of edges are added to both keys and values (got "
                         f"{value.size(-1)})")
    if edge_attr.dim() != 2 or edge_attr.size(0) != graph.num_edges:
        raise ValueError(f"'edge_attr' must have shape [{graph.num_edges}, size], with one row for "
                         f"each edge of the graph (got shape {tuple(edge_attr.shape)})")
    if projection.shape != (*query.shape[1:], edge_attr.size(1)):
        raise ValueError(f"'projection' must have shape {[*query.shape[1:], edge_attr.size(1)]}: "
                         f"heads, channels, and columns of 'edge_attr' (got shape "
                         f"{tuple(projection.shape)})")
