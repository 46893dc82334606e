"""Bipartite graphs of keys and queries: the data structure, its parts and conversions."""

from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask

__all__ = ['GRAPHS', 'BipartiteGraph', 'PairMask', 'register_as_tensors']
