"""Certificate of the graphs of a model: the question and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from analysis.result import Result
from analysis.universality.reach import layers_to_reach_all
from analysis.walk import square_graph, uniform_attention
from graphattn import BipartiteGraph

MAX_TOKENS = 4096  # whose spectra are computed densely
MAX_HOPS = 512


@dataclass(frozen=True)
class Certificate(Result):
    """Measures of each head's graph, and of all layers one after the other."""

    num_tokens: int
    num_layers: int
    num_heads: int  #: In all layers.
    density: float  #: Share of the allowed pairs that are edges.
    layers_to_reach_all: int | None  #: ``None`` if not within the model's layers.
    reached: float  #: Share of the allowed pairs that a path over all layers connects.
    unread: int  #: Number of tokens that no other token reads, in any head.
    density_of_head: np.ndarray
    hops_of_head: np.ndarray  #: Until the head's graph alone reaches what it can; NaN above 512.
    reached_of_head: np.ndarray  #: Share of the allowed pairs that its paths connect in the end.
    gap_of_head: np.ndarray  #: Second eigenvalue of the normalised Laplacian, edges both ways.
    sigma_of_head: np.ndarray  #: Second singular value of uniform attention along the edges.
    one_way_of_head: np.ndarray  #: Share of its edges between tokens whose reverse is no edge.


def certificate(layers: Sequence[Sequence[BipartiteGraph]]) -> Certificate:
    r"""Measure what attention along graphs can do, whatever the weights are.

    Information moves along any edge of any head of a layer, and stays in place by the residual
    connection. So after layer l a token has read

    .. math::
        R_l = (I \vee A_l) R_{l - 1}, \qquad A_l = \bigvee_h A_{l h}, \qquad R_0 = I

    of all pairs that some path allows: all of them, or, if every edge is causal, those of earlier
    tokens.

    Args:
        layers: The graphs of each layer, one for each head, with as many keys as queries; at most
            4,096 tokens.

    Raises:
        TypeError, ValueError: Graphs differ in their tokens, or have more than 4,096.

    Source: reach is condition 3 of Yun et al., "O(n) connections are expressive enough" (2020).

    Example:
        >>> from graphattn.patterns import GlobalTokens, SlidingWindow
        >>> heads = [SlidingWindow(1).build(9), GlobalTokens(1).build(9)]
        >>> found = certificate([heads, heads])
        >>> found.layers_to_reach_all, found.unread
        (2, 0)
    """
    graphs = [[square_graph(graph) for graph in heads] for heads in layers]
    every = [graph for heads in graphs for graph in heads]
    if not every:
        raise ValueError("'layers' must hold at least one graph (got none)")
    n = every[0].num_queries
    if n > MAX_TOKENS or any(graph.num_queries != n for graph in every):
        sizes = sorted({graph.num_queries for graph in every})
        raise ValueError(f"'layers' must hold graphs of the same tokens, at most {MAX_TOKENS} (got "
                         f"{', '.join(map(str, sizes))})")
    is_causal = all(bool((graph.key <= graph.query).all()) for graph in every)
    pairs = n * (n + 1) // 2 if is_causal else n * n
    joined = []
    for heads in graphs:
        union = heads[0]
        for graph in heads[1:]:
            union = union | graph
        joined.append(union.with_self_loops())
    _, reach, _ = layers_to_reach_all(joined, len(joined))
    # Reach is a share of all pairs, and stays as it is once it repeats itself.
    whole = pairs / n**2
    enough = np.flatnonzero(reach >= whole * (1 - 1e-12))
    read = np.zeros(n, dtype=bool)
    for graph in every:
        read[graph.key[graph.key != graph.query].numpy()] = True
    alone = [_of_head(graph, whole) for graph in every]
    return Certificate(
        num_tokens=n, num_layers=len(graphs), num_heads=len(every),
        density=sum(graph.num_edges for graph in every) / (pairs * len(every)),
        layers_to_reach_all=int(enough[0]) + 1 if len(enough) else None,
        reached=float(reach[-1] / whole), unread=int((~read).sum()),
        density_of_head=np.array([graph.num_edges / pairs for graph in every]),
        **{f'{name}_of_head': np.array([head[name] for head in alone]) for name in alone[0]})


def _of_head(graph: BipartiteGraph, whole: float) -> dict[str, float]:
    _, reach, _ = layers_to_reach_all([graph.with_self_loops()], MAX_HOPS)
    settled = reach == reach[-1]
    hops = float(settled.argmax()) + 1
    return {'hops': np.nan if len(reach) == MAX_HOPS and not settled[-2:].all() else hops,
            'reached': float(reach[-1] / whole), 'gap': _gap(graph), 'sigma': _sigma(graph),
            'one_way': _one_way(graph)}


def _gap(graph: BipartiteGraph) -> float:
    """Return the second eigenvalue of the normalised Laplacian of the edges in both directions."""
    adjacency = graph.to_scipy()
    both = ((adjacency + adjacency.T) > 0).astype(float)
    values = np.linalg.eigvalsh(sp.csgraph.laplacian(both, normed=True).toarray())
    return float(values[1]) if len(values) > 1 else 0.


def _sigma(graph: BipartiteGraph) -> float:
    values = np.linalg.svd(uniform_attention(graph, keyless='stay').toarray(), compute_uv=False)
    return float(values[1]) if len(values) > 1 else 0.


def _one_way(graph: BipartiteGraph) -> float:
    between = graph.without_self_loops()
    return 1 - (between & between.transpose()).num_edges / max(between.num_edges, 1)
