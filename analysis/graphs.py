"""Graphs from objects and patterns.

:mod:`analysis.graph_files` reads graphs from files, and :mod:`analysis.runs` reads them from
trained models.
"""

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
    """Convert a graph object to a BipartiteGraph.

    Args:
        graph: A BipartiteGraph, a bool mask ``[query, key]``, a scipy sparse array
            ``[query, key]``, or a networkx graph. Each node of a networkx graph becomes a token. If
            nodes have the attribute ``bipartite``, a warning says so; use
            :meth:`graphattn.BipartiteGraph.from_networkx` to read one part as keys and the other as
            queries.

    Raises:
        TypeError: ``graph`` has another type.
        ValueError: ``graph`` is a batch of several graphs.
    """
    if isinstance(graph, BipartiteGraph):
        if graph.num_segments > 1:
            raise ValueError(f"'graph' must be a single graph (got {graph.num_segments} segments); "
                             f"measure each graph in graph.unbatch(), and show all results by "
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
                  "bipartite; use BipartiteGraph.from_networkx(graph) to read one part as keys "
                  "and the other as queries",
                  stacklevel=3)
    plain = nx.DiGraph() if graph.is_directed() else nx.Graph()
    plain.add_nodes_from(graph)
    plain.add_edges_from(graph.edges())
    return plain


def graph_of_pattern(expression: str, n: int, seed: int = 0) -> BipartiteGraph:
    """Return the graph of a pattern on ``n`` tokens. The pattern is named, such as ``'bigbird'``,
    or is an expression of :func:`graphattn.patterns.parse`.

    Raises:
        ValueError, TypeError: The expression or a parameter is invalid.
    """
    pattern = parse(expression)
    if n < pattern.min_tokens:
        raise ValueError(f"'n' must be at least {pattern.min_tokens}, the fewest tokens of "
                         f"{expression} (got {n})")
    return pattern.build(n, seed=seed)
