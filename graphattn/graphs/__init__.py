"""Bipartite graphs of keys and queries: the value, its parts and what it is made from."""

from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask

__all__ = ['GRAPHS', 'BipartiteGraph', 'PairMask', 'register_as_tensors']
