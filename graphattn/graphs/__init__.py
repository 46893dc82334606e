"""Bipartite graphs of keys and queries: the value, its parts and what it is made from."""

from graphattn.graphs.graph import BipartiteGraph

__all__ = ['BipartiteGraph']
