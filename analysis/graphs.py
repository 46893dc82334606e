"""Graphs from objects and patterns; :mod:`analysis.graph_files` reads files, and
:mod:`analysis.runs` trained models."""

from __future__ import annotations

import warnings

import networkx as nx
import scipy.sparse as sp
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.patterns import parse

MAX_TOKENS = 2**24
GraphLike = BipartiteGraph | Tensor | sp.sparray | sp.spmatrix | nx.Graph


def as_graph(graph: GraphLike) -> BipartiteGraph:
    """Convert any input of :class:`~graphattn.BipartiteGraph`'s constructors to a graph.

    Args:
        graph: A BipartiteGraph, a bool mask ``[query, key]``, a scipy sparse array
            ``[query, key]``, or a networkx graph. Each node of a networkx graph is a token, with a
            warning if nodes have the attribute ``bipartite``; use
            :meth:`graphattn.BipartiteGraph.from_networkx` for parts as keys and queries.

    Raises:
        TypeError: ``graph`` is none of these.
        ValueError: ``graph`` is a batch of several graphs.
    """
    if isinstance(graph, BipartiteGraph):
        if graph.num_segments > 1:
            raise ValueError(f"'graph' must be a single graph (got {graph.num_segments} segments); "
                             f"measure each segment of graph.unbatch(), and show all by "
                             f"analysis.result.table")
        return graph
    if isinstance(graph, Tensor):
        return BipartiteGraph.from_mask(graph)
    if sp.issparse(graph):
        return BipartiteGraph.from_scipy(graph)
    if isinstance(graph, nx.Graph):
        return BipartiteGraph.from_networkx(_of_tokens(graph))
    raise TypeError(f"'graph' must be a BipartiteGraph, a bool mask, a scipy sparse array or a "
                    f"networkx graph (got {type(graph).__name__})")


def _of_tokens(graph: nx.Graph) -> nx.Graph:
    """Return a networkx graph without the attribute ``bipartite``."""
    if not any(part is not None for _, part in graph.nodes(data='bipartite')):
        return graph
    warnings.warn("each node of 'graph' is read as a token, although nodes have the attribute "
                  "bipartite; use BipartiteGraph.from_networkx(graph) for parts as keys and "
                  "queries",
                  stacklevel=3)
    plain = nx.DiGraph() if graph.is_directed() else nx.Graph()
    plain.add_nodes_from(graph)
    plain.add_edges_from(graph.edges())
    return plain


def graph_of_pattern(expression: str, n: int, seed: int = 0) -> BipartiteGraph:
    """Build a preset, or an expression of :func:`graphattn.patterns.parse`, on ``n`` tokens.

    Raises:
        ValueError, TypeError: The expression or a parameter is invalid.
    """
    pattern = parse(expression)
    if n < pattern.min_tokens:
        raise ValueError(f"'n' must be at least {pattern.min_tokens} for {expression} (got {n})")
    return pattern.build(n, seed=seed)
