"""The definition of dot products on edges, computed on all pairs of a segment."""

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.dense import dense_segments, of_keys


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """Return ``<query_i, key_j>`` of each edge, ``[num_edges, heads]``."""
    # Empty, so that query and key get gradients even if there are no segments.
    dot = [(query[:0] * key[:0]).sum(-1)]
    for queries, keys, _, at, mask in dense_segments(graph):
        pairs = torch.einsum('ihc,ijhc->ijh', query[queries], of_keys(key[keys], mask))
        dot.append(pairs[at])
    return torch.cat(dot)
