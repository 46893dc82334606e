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
    """The arguments of one call of an attention function, and the gradient of its output.

    Args:
        name (str): Name of the case in reports.
        graph (BipartiteGraph): The edges.
        tensors (dict): query ``[N, H, C]``, key and value ``[M, G, C]``, and cotangent, the
            gradient of the output, ``[N, H, C]``; optionally edge_bias and edge_gate ``[num_edges,
            H]``, and sink ``[H]``.
        scale (float, optional): Replaces the scale 1 / sqrt(C).
        softcap (float, optional): Bounds the scaled and gated dot products.
        dropout_p (float): Probability of dropping a weight.
        memory (str): Strides of the tensors, a key of :data:`graphattn.testing.call.MEMORY`.
        repeats (bool): Whether to repeat edges and change their order, in forms that allow this.
        wants (Collection[str]): Inputs that require a gradient.
        order (int): Order of the derivatives to check: 1 or 2.
        is_exact (bool): Whether logits are exact in float32, so that rounding of logits explains no
            error.
        is_fixed (bool): Whether the function works only on this graph, so that a failing case must
            keep the graph.
    """

    name: str
    graph: BipartiteGraph
    tensors: dict[str, Tensor]
    scale: float | None = None
    softcap: float | None = None
    dropout_p: float = 0.
    memory: str = 'contiguous'
    repeats: bool = False
    wants: Collection[str] = INPUTS
    order: int = 1
    is_exact: bool = False
    is_fixed: bool = False
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
        """Return whether a query attends to nothing, because it has no edges or because all its
        edges have the bias -inf."""
        degree = self.graph.in_degree()
        if 'edge_bias' not in self.tensors:
            return bool((degree == 0).any())
        counts = (self.tensors['edge_bias'] > -torch.inf).long()
        attended = counts.new_zeros(self.graph.num_queries, self.heads)
        return bool((attended.index_add(0, self.graph.query, counts) == 0).any())

    def changed(self, **tensors: Tensor) -> Case:
        """Return a copy of the test case in which the given tensors are replaced."""
        return replace(self, tensors={**self.tensors, **tensors})


def draw(name: str, graph: BipartiteGraph, dtype: torch.dtype, *, heads: int = 2,
         kv_heads: int | None = None, channels: int = 4, value_channels: int | None = None,
         terms: Collection[str] = (), **options: Any) -> Case:
    """Return a test case: normally distributed inputs of attention along one graph. The same sizes
    lead to the same tensors.

    Args:
        terms (Collection[str]): Optional tensors of the case: ``'edge_bias'``, ``'edge_gate'`` or
            ``'sink'``.
        **options: Further arguments of :class:`Case`.
    """
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
