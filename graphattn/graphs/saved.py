"""The state of graphs for pickle, copy and torch.save."""

from __future__ import annotations

from reprlib import repr as short
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphattn._checks import check_bool, check_num_pairs, check_rows, check_size
from graphattn.graphs.segments import Segments
from graphattn.utils.finite import check_stored

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph

_PARTS = ('indptr', 'key', 'num_keys', 'query_ptr', 'key_ptr', 'edge_prob', 'is_reordered')


def state_of(graph: BipartiteGraph) -> dict[str, Any]:
    """Return a dict of the tensors and numbers from which :func:`parts_of` restores a graph."""
    indptr, key = graph.csr
    key = key.view(torch.int16) if key.dtype == torch.uint16 else key  # torch cannot pickle uint16
    edge_prob = None if graph.edge_prob is None else graph.edge_prob.detach()
    return dict(zip(_PARTS, (indptr, key, graph.num_keys, *graph.segments.ptrs, edge_prob,
                             graph.is_reordered)))


def parts_of(state: dict[str, Any]) -> tuple[Any, ...]:
    """Check a saved graph, and return it as the arguments of ``BipartiteGraph._fill``."""
    # Files may be untrusted. The caller must check that the probabilities are valid, and that no
    # edge leaves its segment.
    if not isinstance(state, dict) or state.keys() != set(_PARTS):
        raise ValueError(f"the saved graph must contain {', '.join(_PARTS)} (got "
                         f"{short(state)}); save the graph again with this version of graphattn")
    for name, value in state.items():
        if isinstance(value, Tensor):
            check_stored(name, value)
    indptr, key, num_keys, query_ptr, key_ptr, edge_prob, is_reordered = (
        state[name] for name in _PARTS)
    if isinstance(key, Tensor) and key.dtype == torch.int16:
        key = key.view(torch.uint16)
    check_size('num_keys', num_keys)
    check_rows(indptr, key, num_keys)
    check_num_pairs(indptr.numel() - 1, num_keys)
    segments = Segments.of(query_ptr, key_ptr, (indptr.numel() - 1, num_keys), key.device)
    check_bool(is_reordered=is_reordered)
    return indptr.contiguous(), key.contiguous(), num_keys, segments, edge_prob, is_reordered
