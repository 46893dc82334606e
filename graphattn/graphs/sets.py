"""Set operations on the edges of two graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from graphattn.graphs.pairs import merge_rows, sort_pairs

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph


def union(self: BipartiteGraph, other: BipartiteGraph) -> BipartiteGraph:
    """Return the graph of the edges that are in at least one of both graphs. Set operations drop
    ``edge_prob``, because the probabilities are not valid for the result."""
    self._check_same_shape(other, '|')
    merged = merge_rows(self.csr, other.csr)
    if merged is not None:
        return self._of(*merged, self._num_keys, self._segments, None)
    return self._with_pairs(sort_pairs(torch.cat([self._pairs(), other._pairs()])))


def intersection(self: BipartiteGraph, other: BipartiteGraph) -> BipartiteGraph:
    """Return the graph of the edges that are in both graphs."""
    self._check_same_shape(other, '&')
    return self._with_pairs(self._pairs()[self.isin(other)])


def difference(self: BipartiteGraph, other: BipartiteGraph) -> BipartiteGraph:
    """Return the graph of the edges that this graph has and ``other`` does not have."""
    self._check_same_shape(other, '-')
    return self._with_pairs(self._pairs()[~self.isin(other)])
