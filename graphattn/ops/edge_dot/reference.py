"""Dot products on edges by their definition: computed for every pair of a segment, then
selected."""

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.dense import dense_segments, of_keys


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """Return ``<query_i, key_j>`` of each edge, ``[num_edges, heads]``."""
    dot = [(query[:0] * key[:0]).sum(-1)]  # keeps both in the graph without segments
    for queries, keys, _, at, mask in dense_segments(graph):
        pairs = torch.einsum('ihc,ijhc->ijh', query[queries], of_keys(key[keys], mask))
        dot.append(pairs[at])
    return torch.cat(dot)
