"""Graphs as pytrees of tensors, for torch.compile, torch.export and torch.func."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field

from torch import Tensor
from torch.utils import _pytree

from graphattn._tensors import is_traced
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.segments import Segments


def register_as_tensors(kind: type[BipartiteGraph]) -> None:
    """Register ``kind``, a class of graphs, as a pytree of tensors, so that compiled and exported
    code accepts its graphs as arguments."""
    _pytree.register_pytree_node(kind, _flatten, _unflatten,
                                 serialized_type_name=f'graphattn.{kind.__name__}',
                                 to_dumpable_context=astuple,
                                 from_dumpable_context=lambda sizes: _Sizes(*sizes),
                                 flatten_with_keys_fn=_flatten_with_keys)


@dataclass(frozen=True)
class _Sizes:
    """Sizes that a pytree stores beside the tensors of a graph."""

    num_keys: int
    # not compared, so that a graph with reordered edges uses the same compiled code
    is_reordered: bool = field(compare=False)
    num_pairs: int | None  # inside the segments; None if it is not known
    is_square: bool | None  # None if it is not known


def _flatten(graph: BipartiteGraph) -> tuple[list[Tensor], _Sizes]:
    edge_prob = [] if graph.edge_prob is None else [graph.edge_prob]
    segments, ptrs = graph.segments, graph.segments.ptrs
    # torch may replace tensors by other objects, whose values are not read.
    can_look = all(isinstance(ptr, Tensor) for ptr in ptrs) and not is_traced(*ptrs)
    of_segments = (segments.num_pairs, segments.is_square) if can_look else segments.known()
    return [*graph.csr, *ptrs, *edge_prob], _Sizes(graph.num_keys, graph.is_reordered, *of_segments)


def _flatten_with_keys(graph: BipartiteGraph) -> tuple[list[tuple], _Sizes]:
    parts, sizes = _flatten(graph)
    # torch.export confuses names if one is a prefix of another.
    names = ('indptr', 'edge_key', 'query_ptr', 'key_ptr', 'edge_prob')
    return [(_pytree.GetAttrKey(name), part) for name, part in zip(names, parts)], sizes


def _unflatten(parts: list[Tensor], sizes: _Sizes) -> BipartiteGraph:
    indptr, key, query_ptr, key_ptr, *edge_prob = parts
    graph, segments = BipartiteGraph.__new__(BipartiteGraph), Segments.__new__(Segments)
    of_segments = {'query_ptr': query_ptr, 'key_ptr': key_ptr, 'ptrs': (query_ptr, key_ptr),
                   '_num_pairs': sizes.num_pairs, '_is_square': sizes.is_square}
    of_graph = {'_indptr': indptr, '_key': key, '_num_keys': sizes.num_keys, '_segments': segments,
                '_edge_prob': edge_prob[0] if edge_prob else None,
                '_is_reordered': sizes.is_reordered, '_csc': None,
                '_held': []}
    for made, parts in ((segments, of_segments), (graph, of_graph)):
        for name, part in parts.items():  # torch 2.11 cannot compile vars().update
            setattr(made, name, part)
    return graph


register_as_tensors(BipartiteGraph)
