"""The arguments of one call of attention in no particular form, and small, awkward graphs."""

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


# Graphs ##############################################################################


def random_graph(num_queries: int, num_keys: int, density: float = 0.4,
                 seed: int = 0) -> BipartiteGraph:
    """Return a graph in which each query has at least one key."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(num_queries, num_keys, generator=generator) < density
    mask[torch.arange(num_queries), torch.arange(num_queries) % num_keys] = True
    return BipartiteGraph.from_mask(mask)


def no_edges(num_queries: int, num_keys: int) -> BipartiteGraph:
    return BipartiteGraph(torch.empty(2, 0, dtype=torch.long), num_queries, num_keys)


def idle_nodes(num_queries: int = 10, num_keys: int = 10) -> BipartiteGraph:
    """Return a random graph without edges at both ends and two nodes in the middle."""
    mask = random_graph(num_queries, num_keys, 0.5).to_mask()
    mask[[0, 4, 5, -1]] = False
    mask[:, [0, 6, 7, -1]] = False
    return BipartiteGraph.from_mask(mask)


def hub(size: int = 20) -> BipartiteGraph:
    """Return a graph in which key 0 and query 0 meet all, and each other token itself."""
    mask = torch.eye(size, dtype=torch.bool)
    mask[0] = mask[:, 0] = True
    return BipartiteGraph.from_mask(mask)


def ragged(*sizes: tuple[int, int]) -> BipartiteGraph:
    return BipartiteGraph.batch([
        random_graph(n, m, 0.5, seed=n) if n and m else no_edges(n, m) for n, m in sizes])


def across_tiles(size: int = 150) -> BipartiteGraph:
    """Return a graph whose queries attend to the first 1, 2, ..., ``size`` keys, shuffled."""
    lengths = torch.arange(1, size + 1)
    # of tiles of 8 to 128 keys, some rows end with a tile, and others inside
    mask = torch.arange(size) < lengths[torch.randperm(
        size, generator=torch.Generator().manual_seed(0))].unsqueeze(1)
    return BipartiteGraph.from_mask(mask)


def at_the_ends(num_queries: int, num_keys: int) -> BipartiteGraph:
    """Return a graph with edges to the first and last keys, and around the limit of 16 bits."""
    key = torch.tensor([0, 1, 65_535, 65_536, num_keys - 1])
    key = key[key < num_keys].unique()
    query = torch.arange(num_queries)
    edges = torch.stack([key.repeat(num_queries), query.repeat_interleave(len(key))])
    return BipartiteGraph(edges, num_queries, num_keys)


with torch.device('cpu'):  # whatever the default device is during the import
    GRAPHS = {
        'square': random_graph(12, 12),
        # As many edges in each row, so that what remembers sizes takes them for the same.
        'square, other edges': BipartiteGraph.from_mask(random_graph(12, 12).to_mask().flip(1)),
        'all pairs': random_graph(6, 6, 1.),
        'one node': random_graph(1, 1, 1.),
        'one key': random_graph(7, 1, 1.),
        'one query': random_graph(1, 9),
        'more keys': random_graph(5, 17),
        'more queries': random_graph(17, 5),
        'hub': hub(),
        'rows of all lengths': across_tiles(),
        'long row': random_graph(1, 300, 1.),
        'long column': random_graph(300, 1, 1.),
        'very long row': random_graph(1, 2_500, 1.),
        # More than 16 bits count, and than a GPU has blocks along two of its axes.
        'many keys': at_the_ends(3, 70_000),
        'many queries': at_the_ends(70_000, 3),
        'ragged batch': ragged((7, 7), (1, 1), (12, 12), (4, 4)),
        'ragged batch, an empty sequence': ragged((3, 3), (0, 0), (5, 5)),
        'idle nodes': idle_nodes(),
        'ragged rectangles': ragged((3, 8), (0, 2), (9, 4), (2, 0), (1, 1)),
        'idle nodes, more keys': idle_nodes(9, 14),
        'no edges': no_edges(4, 4),
        'no keys': no_edges(3, 0),
        'no queries': no_edges(0, 4),
        'nothing': no_edges(0, 0),
    }
