"""The question of diffusion on a graph, and its result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from analysis.checks import check_count, check_positive, check_probability
from analysis.diffusion.fields import receptive_field
from analysis.diffusion.operators import MAX_DENSE, operators_by_hop, resolvent
from analysis.diffusion.responses import ppr_response
from analysis.graphs import GraphLike
from analysis.result import Result
from analysis.walk import (
    MOVED,
    component_eigenvalues,
    distance_of_sets,
    is_symmetric,
    strong_components,
    uniform_attention,
)


@dataclass(frozen=True)
class Diffusion(Result):
    """Receptive fields, distances and eigenvalues of diffusion on a graph.

    Arrays over hops begin at hop 0. Without ``spectra``, the last six fields except
    ``distance_bound`` are empty. The scalars derived from these fields are then ``None``.
    """

    num_tokens: int
    is_symmetric: bool
    teleport: float
    hops: int
    time: float
    queries: int  #: Number of queries whose receptive fields were followed.
    field_at_one: float  #: Mean receptive field after one hop, in keys.
    field_at_last: float
    hops_to_reach_all: int | None  #: Hops until every key reaches every followed query.
    distance_at_last: float | None
    imaginary: float | None  #: Largest imaginary part of the attention's eigenvalues.
    response_error: float | None  #: Largest difference from the response of infinitely many hops.
    prediction_error: float | None  #: Distance between computed and predicted eigenvalues.
    #: Change of the eigenvalues if the attention changes by 1e-13; 0 if the attention is symmetric.
    eigenvalue_shift: float | None
    field_mean: np.ndarray
    field_min: np.ndarray
    field_max: np.ndarray
    distance: np.ndarray  #: Largest absolute row sum of the difference from the resolvent, by hop.
    distance_bound: np.ndarray
    distance_frobenius: np.ndarray  #: Frobenius norm of the difference from the resolvent, by hop.
    eigenvalue: np.ndarray  #: Eigenvalues of the attention, largest modulus first.
    response: np.ndarray  #: Predicted eigenvalues after the hops.
    eigenvalue_after: np.ndarray  #: Computed eigenvalues after the hops, largest modulus first.


def diffusion(
    graph: GraphLike,
    *,
    hops: int = 5,
    teleport: float = 0.1,
    time: float = 5.,
    queries: int | None = None,
    queries_seed: int = 0,
    spectra: bool = True,
) -> Diffusion:
    r"""Measure the diffusion of uniform attention: a query attends equally to all its keys.

    With attention A and teleport a, the matrix of k hops is

    .. math::
        M_0 = I, \quad M_{k+1} = (1 - a) A M_k + a I, \qquad M_\infty = a (I - (1 - a) A)^{-1}

    The last weight of :math:`M_K` is :math:`(1 - a)^K`, so that the weights sum to 1: at a = 0.1
    and K = 5, the weight of :math:`A^5` is 0.59. Measured by the largest absolute row sum,

    .. math::
        M_K - M_\infty = (1 - a)^K A^K (I - M_\infty), \qquad
        \lVert M_K - M_\infty \rVert_\infty \le 2 (1 - a)^{K+1} .

    If the powers of A converge, the distance is below this bound.

    All keys reach all queries within ``hops_to_reach_all`` hops. The paper's proof of universality
    requires more hops than tokens, which exceeds ``hops_to_reach_all``.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        hops: Number of hops K.
        teleport: Probability a of a restart.
        time: Time of the heat kernel drawn for comparison, in mean hops.
        queries: Number of randomly drawn queries to follow for receptive fields. If omitted, all
            queries are followed up to 8,192 tokens, and 512 queries beyond.
        queries_seed: Seed of the drawn queries.
        spectra: Whether to compute eigenvalues and distances from dense matrices, for at most 2,048
            tokens.

    Returns:
        Diffusion.

    Raises:
        TypeError, ValueError: An argument is invalid, or the graph is too large for ``spectra``.

    Source: Diffuser, Eq. S.6, S.7, S.10, Propositions 4 and 5.

    Example:
        >>> import networkx as nx
        >>> result = diffusion(nx.cycle_graph(9), hops=2)
        >>> result.field_mean
        array([1., 3., 5.])
    """
    check_count('hops', hops)
    check_probability('teleport', teleport)
    check_positive('time', time)
    attention = uniform_attention(graph)
    n = attention.shape[0]
    if spectra and n > MAX_DENSE:
        raise ValueError(f"'graph' must have at most {MAX_DENSE} tokens for spectra and "
                         f"distances (got {n}); use fewer tokens, or pass spectra=False to "
                         "compute receptive fields only")
    field = receptive_field(graph, hops=hops, queries=queries, queries_seed=queries_seed)
    reaches_all = (field == n).all(axis=1)
    return Diffusion(
        num_tokens=n, is_symmetric=is_symmetric(attention), teleport=teleport, hops=hops,
        time=time, queries=field.shape[1], field_at_one=float(field[1].mean()),
        field_at_last=float(field[-1].mean()),
        hops_to_reach_all=int(reaches_all.argmax()) if reaches_all.any() else None,
        field_mean=field.mean(axis=1), field_min=field.min(axis=1), field_max=field.max(axis=1),
        distance_bound=2 * (1 - teleport) ** np.arange(1, hops + 2),
        **_operators(attention, hops, teleport, spectra))


def _operators(attention: sp.csr_array, hops: int, teleport: float,
               spectra: bool) -> dict[str, np.ndarray | float | None]:
    """Return the fields of :class:`Diffusion` that are computed from dense matrices ``[n, n]``, as
    a dict. Without ``spectra``, they are ``None`` or empty."""
    if not spectra:
        scalars = 'distance_at_last', 'imaginary', 'response_error', 'prediction_error', \
            'eigenvalue_shift'
        arrays = ('distance', 'distance_frobenius', 'eigenvalue', 'response',
                  'eigenvalue_after')
        return dict.fromkeys(scalars) | dict.fromkeys(arrays, np.array([]))
    limit = resolvent(attention, teleport)
    distance, frobenius = [], []
    for matrix in tqdm(operators_by_hop(attention, hops, teleport), total=hops + 1,
                       desc='operators', unit='hop', delay=2, disable=None):
        rest = matrix - limit
        distance.append(np.abs(rest).sum(axis=1).max())
        frobenius.append(np.linalg.norm(rest))
    eigenvalue = _eigenvalues(attention, attention)
    response = ppr_response(eigenvalue, teleport, hops)
    eigenvalue_after = _eigenvalues(matrix, attention)
    return {
        'distance_at_last': float(distance[-1]),
        'imaginary': float(np.abs(eigenvalue.imag).max()),
        'response_error': float(np.abs(response - ppr_response(eigenvalue, teleport)).max()),
        'prediction_error': distance_of_sets(response, eigenvalue_after),
        'eigenvalue_shift': distance_of_sets(eigenvalue,
                                             _eigenvalues(attention, attention, MOVED)),
        'distance': np.array(distance), 'distance_frobenius': np.array(frobenius),
        'eigenvalue': eigenvalue, 'response': response, 'eigenvalue_after': eigenvalue_after}


def _eigenvalues(matrix: np.ndarray | sp.csr_array, attention: sp.csr_array,
                 moved: float = 0.) -> np.ndarray:
    """Return the eigenvalues of ``matrix``, the largest modulus first.

    Args:
        matrix: The attention matrix, or a polynomial in it, ``[n, n]``.
        attention: The attention matrix, from which symmetry and components are read.
        moved: See :func:`analysis.walk.component_eigenvalues`.
    """
    if not is_symmetric(attention):
        return component_eigenvalues(matrix, strong_components(attention), moved)
    # If the graph is symmetric and has degrees D, the matrix D^(1/2) A D^(-1/2) is symmetric.
    root = np.sqrt(np.maximum(np.diff(attention.indptr), 1))
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    values = np.linalg.eigvalsh(root[:, None] * dense / root)
    return values[np.argsort(-np.abs(values), kind='stable')]
