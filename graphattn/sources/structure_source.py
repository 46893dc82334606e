"""The edges of a source together with edges of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphattn._checks import check_kind
from graphattn._tensors import host_copy
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.complete import CompleteGraph
from graphattn.graphs.from_pyg import (
    Edges,
    check_edges,
    device_of,
    edge_index_of,
    identity_of,
    sort_edges,
)
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pairs import RepeatedEdges
from graphattn.sources.base import GraphSource
from graphattn.sources.sampled_graph import SampledGraph


class StructureSource(GraphSource):
    """Source that joins the edges of another source with edges of the data.

    ``source | edges`` builds it.

    Every head attends along the edges of the data. In heads that sample their edges
    (:class:`graphattn.sources.BlockModelSource`), the edges of the data have probability 1.

    Together with the preset ``'exphormer'``, this source has three kinds of edges like Exphormer:
    edges of the data, edges of a directed expander, and edges of virtual nodes, which are the first
    tokens of each sequence.

    Args:
        source (GraphSource): Source of a pattern or of a block model.
        edges (Tensor, SparseTensor or BipartiteGraph): Edges of the batch in the next call: int64
            ``edge_index`` ``[2, num_edges]`` in any order, with keys in the first row and queries
            in the second; an ``EdgeIndex``; a transposed adjacency ``adj_t``; or a graph. Repeated
            edges are merged.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: In a call, ``source`` returns a learned mask, or edges with probabilities that
            are not from a block model.

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

    def __init__(self, source: GraphSource, edges: Edges):
        super().__init__()
        check_kind('source', source, GraphSource)
        self.source, self.edges = source, check_edges(edges)
        self.per_head, self.heads = source.per_head, source.heads
        self.max_length = source.max_length

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        """Return the graph over all sequences. The arguments are those of :class:`GraphSource`.

        Raises:
            ValueError: As in :class:`GraphSource`; or the edges of the data are on another device,
                or one of them joins two sequences.
        """
        self.check_tokens(query, key, ptr, generator=generator)
        if key_ptr is not None:
            raise ValueError("'key_ptr' must be None with edges of the data, because these edges "
                             "join tokens that are both queries and keys; omit 'key_ptr'")
        if device_of(self.edges) != query.device:
            raise ValueError(f"'edges' must be on {query.device}, the device of the tokens (got "
                             f"{device_of(self.edges)}); pass edges.to('{query.device}')")
        graph = self.source(query, key, ptr, generator=generator)
        is_plain = type(graph) in (BipartiteGraph, CompleteGraph) and graph.edge_prob is None
        if not is_plain and not isinstance(graph, SampledGraph):
            raise ValueError(f"'source' must return the edges of a pattern or a block model (got "
                             f"{graph} from a {type(self.source).__name__})")
        return self._joined(graph, ptr, query.size(0))

    @torch.compiler.disable(reason='edges are sorted, and compared with one another')
    def _joined(self, graph: BipartiteGraph, ptr: Tensor, num_tokens: int) -> BipartiteGraph:
        structure = self._structure(ptr, num_tokens)
        if isinstance(graph, SampledGraph):
            return graph.with_fixed(structure)
        edges, drawn = identity_of(self.edges), identity_of(graph)
        cache_key = None if edges is None or drawn is None else (*edges, *drawn)
        return GRAPHS.get(cache_key, lambda: graph | structure)

    def _structure(self, ptr: Tensor, num_tokens: int) -> BipartiteGraph:
        heads, edges = self.heads if self.per_head else 1, identity_of(self.edges)
        place = heads, *host_copy(ptr).tolist()
        cache_key = None if edges is None else (*edges, 'structure', *place)
        return GRAPHS.get(cache_key, lambda: BipartiteGraph.batch(
            [_graph_of_edges(self.edges, ptr, num_tokens)] * heads))

    def arguments(self) -> dict[str, Any]:
        raise ValueError("a StructureSource cannot be saved, because it contains the edges of one "
                         "batch; save its 'source', and call StructureSource again with the loaded "
                         "source")

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        return self.source.logit_terms(graph)

    def extra_repr(self) -> str:
        return f'edges={self.edges if isinstance(self.edges, BipartiteGraph) else "edge_index"}'


def _graph_of_edges(edges: Edges, ptr: Tensor, num_tokens: int) -> BipartiteGraph:
    try:
        graph = sort_edges(edges, num_tokens, num_tokens).graph
    except RepeatedEdges:  # repeated edges without values can be merged
        graph = BipartiteGraph.from_edge_index(edge_index_of(edges), num_tokens)
    return BipartiteGraph.from_csr(*graph.csr, graph.num_keys, query_ptr=ptr, key_ptr=ptr)
