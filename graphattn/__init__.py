"""Attention heads as message passing over bipartite graphs of keys and queries."""

from graphattn.graphs.graph import BipartiteGraph

__version__ = '0.1.0'

__all__ = ['BipartiteGraph']
