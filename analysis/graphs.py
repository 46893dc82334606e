"""Graphs from objects and patterns, and their adjacency matrices."""

from __future__ import annotations

import math
import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.patterns import parse

if TYPE_CHECKING:
    import networkx as nx

MAX_TOKENS = 2**24
GraphLike: TypeAlias = 'BipartiteGraph | Tensor | sp.sparray | sp.spmatrix | nx.Graph'
Symmetrization = Literal['union', 'mean', 'intersection']


def as_graph(graph: GraphLike) -> BipartiteGraph:
    """Convert a BipartiteGraph, a bool mask ``[query, key]``, a scipy sparse array ``[query, key]``
    or a networkx graph, each of whose nodes becomes a token, to a BipartiteGraph."""
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
    import networkx as nx

    if isinstance(graph, nx.Graph):
        return BipartiteGraph.from_networkx(_of_tokens(graph))
    raise TypeError(f"'graph' must be a BipartiteGraph, a bool mask, a scipy sparse array or a "
                    f"networkx graph (got {type(graph).__name__})")


def _of_tokens(graph: nx.Graph) -> nx.Graph:
    import networkx as nx

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
    """Return the graph of a pattern on ``n`` tokens."""
    pattern = parse(expression)
    if n < pattern.min_tokens:
        raise ValueError(f"'n' must be at least {pattern.min_tokens}, the fewest tokens of "
                         f"{expression} (got {n})")
    return pattern.build(n, seed=seed)


def adjacency_of(graph: GraphLike, weights: bool = False) -> sp.csr_array:
    """Return the matrix ``[query, key]`` of a graph; with ``weights``, of a floating tensor too, of
    an array's entries, or of networkx's attribute ``weight``, where repeated edges add up."""
    if not weights:
        return as_graph(graph).to_scipy()
    matrix = sp.csr_array(_weighted(graph), copy=True)
    if matrix.dtype.kind not in 'biuf':
        raise TypeError(f"'graph' must have real weights (got {matrix.dtype}); convert the weights "
                        f"to float")
    matrix = matrix.astype(float)
    matrix.sum_duplicates()
    _check_weights(matrix.data)
    matrix.eliminate_zeros()
    return matrix


def _weighted(graph: GraphLike) -> sp.sparray | sp.spmatrix | np.ndarray:
    if isinstance(graph, Tensor) and graph.dim() == 2 and graph.is_floating_point():
        return graph.detach().cpu().double().numpy()
    checked = as_graph(graph)
    if sp.issparse(graph):
        return graph
    if not isinstance(graph, BipartiteGraph | Tensor) and len(graph):
        import networkx as nx

        try:
            return nx.to_scipy_sparse_array(graph, dtype=float).T
        except (TypeError, ValueError) as error:
            raise TypeError(f"'graph' must have numbers as the attribute 'weight' of its edges "
                            f"({error}); convert the weights to float") from error
    return checked.to_scipy()


def _check_weights(weights: np.ndarray) -> None:
    bad = weights[~((weights >= 0) & np.isfinite(weights))]
    if bad.size:
        raise ValueError(f"'graph' must have weights that are finite and not negative (got "
                         f"{bad[0]:g}); replace such weights, for example by their absolute "
                         f"values, or ignore all weights")
    with np.errstate(over='ignore'):
        total = weights.sum()
    if not np.isfinite(total):
        raise ValueError(f"'graph' must have weights with a finite sum (got weights up to "
                         f"{weights.max():g}); divide all weights by the largest weight")


def symmetric_adjacency(graph: GraphLike, symmetrization: Symmetrization = 'union',
                        weights: bool = False) -> sp.csr_array:
    """Return the symmetric matrix of a graph: union max(A, A^T), mean (A + A^T) / 2 or intersection
    min(A, A^T)."""
    return symmetrize(adjacency_of(graph, weights), symmetrization)


def symmetrize(adjacency: sp.csr_array, symmetrization: Symmetrization) -> sp.csr_array:
    num_queries, num_keys = adjacency.shape
    if num_queries != num_keys:
        raise ValueError(f"'graph' must have as many keys as queries to be symmetrised (got "
                         f"{num_keys} and {num_queries}); for other graphs, compute singular "
                         f"values by analysis.spectrum")
    if symmetrization not in get_args(Symmetrization):
        raise ValueError(f"'symmetrization' must be one of {get_args(Symmetrization)} (got "
                         f"{symmetrization!r})")
    reverse = adjacency.T.tocsr()
    if symmetrization == 'mean':
        return (adjacency + reverse) / 2
    combine = adjacency.maximum if symmetrization == 'union' else adjacency.minimum
    return combine(reverse)


def describe_symmetrization(adjacency: sp.csr_array, symmetrization: str) -> str:
    """Return ``symmetrization`` as text for a table, or 'not needed' if the adjacency matrix is
    already symmetric."""
    is_symmetric = (adjacency != adjacency.T.tocsr()).nnz == 0
    return 'not needed' if is_symmetric else symmetrization


def check_count(name: str, value: int, at_least: int = 1, at_most: int | None = None) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"'{name}' must be an int (got {type(value).__name__})")
    if value < at_least:
        raise ValueError(f"'{name}' must be at least {at_least} (got {value})")
    if at_most is not None and value > at_most:
        raise ValueError(f"'{name}' must be at most {at_most:,} (got {value:,})")


def check_probability(name: str, value: float) -> None:
    _check_number(name, value)
    if not (math.isfinite(value) and 0 < value <= 1):
        raise ValueError(f"'{name}' must be in (0, 1] (got {value})")


def check_positive(name: str, value: float) -> None:
    _check_number(name, value)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"'{name}' must be positive (got {value})")


def _check_number(name: str, value: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"'{name}' must be a number (got {type(value).__name__})")
