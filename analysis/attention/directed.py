"""The Laplacian of a directed graph, from the flow of the random walk along its edges."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from analysis.adjacency import adjacency_of
from analysis.checks import check_probability
from analysis.graphs import GraphLike
from analysis.mixing.limits import MAX_DENSE, closed_classes_of, stationary_distribution
from analysis.spectrum import Laplacian
from analysis.walk import strong_components


def circulation(graph: GraphLike, *, weights: bool = False,
                teleport: float | None = None) -> sp.csr_array:
    r"""Return the flow :math:`\Phi P` of the stationary walk along the edges of a directed graph.

    The walk moves from query i to key j with probability :math:`P_{ij} = A_{ij} / \sum_k A_{ik}`,
    and :math:`\Phi` is the diagonal matrix of its stationary distribution :math:`\varphi`. As much
    flows into a token as out of it, so the rows and the columns of the flow both sum to
    :math:`\varphi`.

    Args:
        graph: See :func:`analysis.adjacency.adjacency_of`, with as many keys as queries.
        weights: Whether to use the weights of edges instead of 1.
        teleport: Probability of a step to any token, all of them equally likely. A query without
            keys always takes such a step.

    Returns:
        float64 CSR array ``[n, n]`` that sums to 1.

    Raises:
        ValueError: The graph is not strongly connected and ``teleport`` is omitted, or the graph
            has more than 4,096 tokens and ``teleport`` is given.
    """
    return circulation_of(adjacency_of(graph, weights), teleport)


def directed_laplacian(graph: GraphLike, *, weights: bool = False,
                       teleport: float | None = None) -> Laplacian:
    r"""Return the Laplacian of a directed graph.

    .. math::
        L = I - \tfrac{1}{2} \bigl(\Phi^{1/2} P \, \Phi^{-1/2}
        + \Phi^{-1/2} P^\top \Phi^{1/2}\bigr)

    L is the normalised Laplacian of the undirected graph with weights
    :math:`(\Phi P + P^\top \Phi) / 2`, so that Cheeger's inequality bounds the least circulation
    out of a set of tokens.

    Args:
        graph, weights, teleport: See :func:`circulation`.

    Returns:
        Laplacian. Its ``matrix`` is L, and its ``degree`` is :math:`\varphi`.

    Raises:
        ValueError: As :func:`circulation`.

    Source: Chung, "Laplacians and the Cheeger inequality for directed graphs" (2005).

    Example:
        >>> import networkx as nx
        >>> from analysis.attention import directed_laplacian
        >>> cycle = nx.cycle_graph(4, create_using=nx.DiGraph)
        >>> directed_laplacian(cycle).smallest(2).values.round(6) + 0
        array([0., 1.])
    """
    return laplacian_of(circulation(graph, weights=weights, teleport=teleport))


def laplacian_of(flow: sp.csr_array) -> Laplacian:
    """Return the normalised Laplacian of a directed graph, given ``flow``, a result of
    :func:`circulation`."""
    return Laplacian(sp.csr_array(flow + flow.T) / 2)


def circulation_of(matrix: sp.csr_array, teleport: float | None = None) -> sp.csr_array:
    """Do the same as :func:`circulation` for a sparse array ``[query, key]`` of edge weights."""
    n, num_keys = matrix.shape
    if n != num_keys or n == 0:
        raise ValueError(f"'graph' must have as many keys as queries, and at least one of each, "
                         f"for a random walk (got {num_keys} keys and {n} queries)")
    walk = _walk(matrix) if teleport is None else _teleporting(matrix, teleport)
    component = strong_components(walk)
    if component.max() > 0:
        raise ValueError(f"'graph' must be strongly connected for a directed Laplacian (got "
                         f"{component.max() + 1} strongly connected components); pass "
                         f"teleport=0.1, or measure each component alone")
    stationary = stationary_distribution(walk, closed_classes_of(walk, component), False)
    if not (stationary > 0).all():
        raise ValueError(f"'graph' must have stationary probabilities above rounding errors (got "
                         f"smaller probabilities, with {n} tokens); measure at most {MAX_DENSE} "
                         f"tokens, or another graph")
    return sp.csr_array(sp.diags_array(stationary) @ walk)


def normalized_rows(matrix: sp.csr_array) -> sp.csr_array:
    """Return ``matrix`` with each row divided by its sum. Rows of zeros remain zeros."""
    total = matrix.sum(axis=1)
    return sp.csr_array(sp.diags_array(1 / np.where(total > 0, total, 1)) @ matrix)


def _walk(matrix: sp.csr_array) -> sp.csr_array:
    """Return the transition matrix of the random walk from each query to one of its keys. The walk
    stays at a query that has no keys."""
    stays = sp.diags_array((matrix.sum(axis=1) == 0).astype(float))
    return sp.csr_array(normalized_rows(matrix) + stays)


def _teleporting(matrix: sp.csr_array, teleport: float) -> sp.csr_array:
    check_probability('teleport', teleport)
    n = matrix.shape[0]
    if n > MAX_DENSE:
        raise ValueError(f"'graph' must have at most {MAX_DENSE} tokens with 'teleport' (got {n}); "
                         f"omit 'teleport', or measure a smaller graph")
    walk = normalized_rows(matrix).toarray()
    walk[walk.sum(axis=1) == 0] = 1 / n
    return sp.csr_array((1 - teleport) * walk + teleport / n)
