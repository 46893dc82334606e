"""The arguments of one call of attention, whatever form a function takes them in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph

TERMS = ('edge_bias', 'edge_gate', 'sink')  # passed by name
INPUTS = ('query', 'key', 'value', *TERMS)


@dataclass(frozen=True)
class Case:
    """The arguments of one call of an attention function, and the gradient of its output."""

    name: str
    graph: BipartiteGraph
    # query [N, H, C], key and value [M, G, C], cotangent [N, H, C], edge_bias and edge_gate
    # [num_edges, H], sink [H]
    tensors: dict[str, Tensor]
    scale: float | None = None
    softcap: float | None = None
    dropout_p: float = 0.
    memory: str = 'contiguous'  # a key of graphattn.testing.call.MEMORY
    repeats: bool = False  # whether edges are repeated and shuffled, where the form allows it
    wants: Collection[str] = INPUTS  # inputs that require a gradient
    order: int = 1  # of the derivatives to check, 1 or 2
    is_exact: bool = False  # whether logits are exact in float32
    is_fixed: bool = False  # whether the function works only on this graph
    inputs: dict[str, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inputs = {name: x for name, x in self.tensors.items() if name != 'cotangent'}
        object.__setattr__(self, 'inputs', inputs)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors['query'].dtype

    @property
    def heads(self) -> int:
        return self.tensors['query'].size(1)

    @property
    def kv_heads(self) -> int:
        return self.tensors['key'].size(1)

    @property
    def channels(self) -> int:
        return self.tensors['query'].size(2)

    @property
    def value_channels(self) -> int:
        return self.tensors['value'].size(2)

    @property
    def has_empty_rows(self) -> bool:
        # a query without edges, or whose edges all have the bias -inf
        degree = self.graph.in_degree()
        if 'edge_bias' not in self.tensors:
            return bool((degree == 0).any())
        counts = (self.tensors['edge_bias'] > -torch.inf).long()
        attended = counts.new_zeros(self.graph.num_queries, self.heads)
        return bool((attended.index_add(0, self.graph.query, counts) == 0).any())

    def changed(self, **tensors: Tensor) -> Case:
        return replace(self, tensors={**self.tensors, **tensors})


def draw(name: str, graph: BipartiteGraph, dtype: torch.dtype, *, heads: int = 2,
         kv_heads: int | None = None, channels: int = 4, value_channels: int | None = None,
         terms: Collection[str] = (), **options: Any) -> Case:
    """Return a case of normally distributed inputs, the same for the same sizes."""
    kv_heads = heads if kv_heads is None else kv_heads
    value_channels = channels if value_channels is None else value_channels
    shapes = {'query': (graph.num_queries, heads, channels),
              'key': (graph.num_keys, kv_heads, channels),
              'value': (graph.num_keys, kv_heads, value_channels),
              'cotangent': (graph.num_queries, heads, value_channels),
              **{term: (heads,) if term == 'sink' else (graph.num_edges, heads) for term in terms}}
    generator = torch.Generator().manual_seed(0)
    tensors = {each: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
               for each, shape in shapes.items()}
    # Small integers are exact in every dtype.
    tensors['cotangent'] = tensors['cotangent'].mul(2).round()
    return Case(name, graph, tensors, **options)
