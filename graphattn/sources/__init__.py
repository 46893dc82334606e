"""Sources, which are modules that map the tokens of a layer to the graph that the layer attends
along.

To write a source, subclass :class:`GraphSource`. Its ``forward`` gets queries, keys and the
beginnings of the sequences, and returns a graph. In this example, the signs of random projections
are the hash of a token. A query attends to the ``k`` keys of its sequence whose hashes are nearest
in sorted order:

    >>> import torch
    >>> from graphattn import BipartiteGraph
    >>> from graphattn.layers import GraphAttention
    >>> from graphattn.sources import GraphSource
    >>> class NearestHashes(GraphSource):
    ...     def __init__(self, channels, k):
    ...         super().__init__()
    ...         self.k, self.planes = k, torch.nn.Buffer(torch.randn(channels, 16))
    ...     def forward(self, query, key, ptr, *, generator=None):
    ...         of, both = torch.repeat_interleave(ptr.diff()), torch.stack([query, key]).mean(2)
    ...         i, j = (2**torch.arange(16) * (both @ self.planes > 0)).sum(2) + of * 2**16
    ...         steps = torch.arange(self.k)[:, None] - self.k // 2
    ...         near = torch.searchsorted(j.sort()[0], i) + steps
    ...         near = j.argsort()[near.clamp(ptr[of], ptr[of + 1] - 1)]
    ...         edges = torch.stack([near, torch.arange(len(of)).expand_as(near)]).flatten(1)
    ...         return BipartiteGraph.from_edge_index(edges, len(of), query_ptr=ptr, key_ptr=ptr)
    >>> attention = GraphAttention(32, 4, NearestHashes(channels=8, k=5))
    >>> tokens, ptr = torch.randn(500, 32), torch.tensor([0, 200, 500])  # two sequences
    >>> out, graph = attention(tokens, ptr, return_graph=True)
    >>> out.shape, graph.num_segments, int(graph.in_degree().max())
    (torch.Size([500, 32]), 2, 5)
"""

from graphattn.sources.base import GraphSource
from graphattn.sources.block_model import BlockModelSource
from graphattn.sources.content_clusters import (
    ClusterKeys,
    ContentClusterSource,
    HeadClusters,
    as_source,
)
from graphattn.sources.learned_mask import LearnedMaskSource
from graphattn.sources.pattern_source import PatternSource
from graphattn.sources.structure_source import StructureSource

__all__ = ['BlockModelSource', 'ClusterKeys', 'ContentClusterSource', 'GraphSource',
           'HeadClusters', 'LearnedMaskSource', 'PatternSource',
           'StructureSource', 'as_source']
