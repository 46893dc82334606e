"""The edges of a pattern together with edges of the data."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._checks import check_generator, check_kind
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.from_pyg import (
    Edges,
    device_of,
    edge_index_of,
    identity_of,
    sort_edges,
)
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.merging import RepeatedEdges
from graphattn.sources.base import GraphSource


class StructureSource(GraphSource):
    """Join the edges of a pattern with the edges of a graph among the tokens. ``source | edges``
    makes it from a :class:`graphattn.sources.PatternSource`.

    With the preset ``'exphormer'``, it has the three kinds of edges of Exphormer: the edges of the
    graph, of an expander, and of virtual nodes, which are the first tokens of each sequence.

    Args:
        pattern (GraphSource): Edges that do not depend on the data.
        edges (Tensor, SparseTensor or BipartiteGraph): Edges of the batch in the next call: int64
            ``edge_index`` ``[2, num_edges]``, key over query, in any order, an ``EdgeIndex``, a
            transposed adjacency ``adj_t``, or a graph. Repeated edges are merged.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: In a call, ``pattern`` returns edges with probabilities, because edges of the
            data have none.

    Source: Shirzad et al., "Exphormer" (2023), Sec. 3.

    Example:
        >>> import torch
        >>> from graphattn.layers import GraphAttention
        >>> from graphattn.sources import PatternSource
        >>> x, ptr = torch.randn(9, 8), torch.tensor([0, 4, 9])   # two graphs of a PyG batch
        >>> edge_index = torch.tensor([[1, 2, 5, 8], [2, 1, 8, 5]])
        >>> source = PatternSource('exphormer') | edge_index
        >>> GraphAttention(8, 2)(x, ptr, source=source).shape
        torch.Size([9, 8])
    """

    def __init__(self, pattern: GraphSource, edges: Edges):
        super().__init__()
        check_kind('pattern', pattern, GraphSource)
        if not isinstance(edges, Edges):
            raise TypeError(f"'edges' must be a Tensor, a SparseTensor or a BipartiteGraph (got "
                            f"{type(edges).__name__})")
        self.pattern, self.edges = pattern, edges
        self.per_head, self.heads = pattern.per_head, pattern.heads
        self.max_length = pattern.max_length

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        """Return the graph over all sequences; arguments as in :class:`GraphSource`.

        Raises:
            ValueError: Also if the edges are on another device, or an edge joins two sequences.
        """
        if key_ptr is not None:
            raise ValueError("'key_ptr' must be None for edges among the tokens of one graph")
        self.check_tokens(query, key, ptr)
        check_generator(generator)
        device = device_of(self.edges)
        if device != query.device:
            raise ValueError(f"'edges' must be on {query.device} like the tokens (got {device})")
        drawn = self.pattern(query, key, ptr, generator=generator)
        if not isinstance(drawn, BipartiteGraph) or drawn.edge_prob is not None:
            raise ValueError(f"'pattern' must return edges without probabilities, as a "
                             f"PatternSource does (got {drawn} of {type(self.pattern).__name__})")
        return self._joined(drawn, ptr, query.size(0))

    @torch.compiler.disable(reason='edges are sorted, and compared with one another')
    def _joined(self, drawn: BipartiteGraph, ptr: Tensor, num_tokens: int) -> BipartiteGraph:
        edges, pattern = identity_of(self.edges), identity_of(drawn)
        cache_key = None if edges is None or pattern is None else (*edges, *pattern)
        return GRAPHS.get(cache_key, lambda: drawn | self._structure(ptr, num_tokens))

    def _structure(self, ptr: Tensor, num_tokens: int) -> BipartiteGraph:
        try:
            graph = sort_edges(self.edges, num_tokens, num_tokens).graph
        except RepeatedEdges:  # without values they can be merged
            graph = BipartiteGraph.from_edge_index(edge_index_of(self.edges), num_tokens)
        graph = BipartiteGraph.from_csr(*graph.csr, graph.num_keys, query_ptr=ptr, key_ptr=ptr)
        return BipartiteGraph.batch([graph] * (self.heads if self.per_head else 1))

    def extra_repr(self) -> str:
        return f'edges={self.edges if isinstance(self.edges, BipartiteGraph) else "edge_index"}'
