"""Bipartite graphs of keys and queries: the value, its parts and what it is made from."""

from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.graph import BipartiteGraph

__all__ = ['BipartiteGraph', 'register_as_tensors']
