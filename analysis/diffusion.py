"""K hops of attention diffusion: spectrum, receptive field, and distance to the limit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from tqdm import tqdm

from analysis import walk as walks
from analysis.graphs import GraphLike, check_count, check_positive, check_probability
from analysis.result import Result

__all__ = ['Diffusion', 'diffusion', 'receptive_field']
MAX_DENSE = 2048
_ALL_QUERIES_UP_TO = 8192
_SAMPLED_QUERIES = 512


@dataclass(frozen=True)
class Diffusion(Result):
    """Receptive fields, distances and eigenvalues of diffusion on a graph.

    Arrays over hops begin at hop 0. Without ``spectra``, the last six fields except
    ``distance_bound`` are empty. The scalars derived from these fields are then ``None``.
    """

    ONLY = {'with --spectra true': ('distance_at_last', 'imaginary', 'response_error',
                                    'prediction_error', 'eigenvalue_shift')}
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
    attention = walks.uniform_attention(graph)
    n = attention.shape[0]
    if spectra and n > MAX_DENSE:
        raise ValueError(f"'graph' must have at most {MAX_DENSE} tokens for spectra and "
                         f"distances (got {n}); use fewer tokens, or pass spectra=False to "
                         "compute receptive fields only")
    field = receptive_field(graph, hops=hops, queries=queries, queries_seed=queries_seed)
    reaches_all = (field == n).all(axis=1)
    return Diffusion(
        num_tokens=n, is_symmetric=walks.is_symmetric(attention), teleport=teleport, hops=hops,
        time=time, queries=field.shape[1], field_at_one=float(field[1].mean()),
        field_at_last=float(field[-1].mean()),
        hops_to_reach_all=int(reaches_all.argmax()) if reaches_all.any() else None,
        field_mean=field.mean(axis=1), field_min=field.min(axis=1), field_max=field.max(axis=1),
        distance_bound=2 * (1 - teleport) ** np.arange(1, hops + 2),
        **_operators(attention, hops, teleport, spectra))


def _operators(attention: sp.csr_array, hops: int, teleport: float,
               spectra: bool) -> dict[str, np.ndarray | float | None]:
    """Return the fields of :class:`Diffusion` that are computed from dense matrices ``[n, n]``, as
    a dict."""
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
        'prediction_error': walks.distance_of_sets(response, eigenvalue_after),
        'eigenvalue_shift': walks.distance_of_sets(eigenvalue,
                                                   _eigenvalues(attention, attention, walks.MOVED)),
        'distance': np.array(distance), 'distance_frobenius': np.array(frobenius),
        'eigenvalue': eigenvalue, 'response': response, 'eigenvalue_after': eigenvalue_after}


def _eigenvalues(matrix: np.ndarray | sp.csr_array, attention: sp.csr_array,
                 moved: float = 0.) -> np.ndarray:
    """Return the eigenvalues of ``matrix``, the largest modulus first."""
    if not walks.is_symmetric(attention):
        return walks.component_eigenvalues(matrix, walks.strong_components(attention), moved)
    # If the graph is symmetric and has degrees D, the matrix D^(1/2) A D^(-1/2) is symmetric.
    root = np.sqrt(np.maximum(np.diff(attention.indptr), 1))
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    values = np.linalg.eigvalsh(root[:, None] * dense / root)
    return values[np.argsort(-np.abs(values), kind='stable')]


def operator(attention: sp.csr_array, hops: int, teleport: float) -> np.ndarray:
    """Return the matrix ``[n, n]`` that maps the values of all tokens to their values after K hops
    of diffusion along a sparse array ``[query, key]`` (Diffuser, Eq. S.7)."""
    check_count('hops', hops, at_least=0)
    *_, last = operators_by_hop(attention, hops, teleport)
    return last


def resolvent(attention: sp.csr_array, teleport: float) -> np.ndarray:
    r"""Return the limit of :func:`operator` for infinitely many hops, :math:`a (I - (1 - a)
    A)^{-1}` (Diffuser, Proposition 4)."""
    check_probability('teleport', teleport)
    _check_dense(attention)
    identity = np.eye(attention.shape[0])
    return scipy.linalg.solve(identity - (1 - teleport) * attention, teleport * identity)


def operators_by_hop(attention: sp.csr_array, hops: int,
                     teleport: float) -> Iterator[np.ndarray]:
    """Yield the matrices of :func:`operator` after 0, 1, ... hops."""
    check_probability('teleport', teleport)
    _check_dense(attention)
    restart = teleport * np.eye(attention.shape[0])
    matrix = np.eye(attention.shape[0])
    yield matrix
    for _ in range(hops):
        matrix = (1 - teleport) * (attention @ matrix) + restart
        yield matrix


def _check_dense(attention: sp.csr_array) -> None:
    if not sp.issparse(attention) or attention.shape[0] != attention.shape[-1]:
        raise TypeError("'attention' must be a square scipy sparse array [query, key]; build one "
                        "by uniform_attention or BipartiteGraph.to_scipy")
    if attention.shape[0] > MAX_DENSE:
        raise ValueError(f"'attention' must have at most {MAX_DENSE} tokens for dense matrices "
                         f"(got {attention.shape[0]}); use fewer tokens")


def ppr_response(eigenvalue: np.ndarray, teleport: float, hops: int | None = None) -> np.ndarray:
    r"""Map eigenvalues of the attention to those of personalised PageRank, :math:`a / (1 - (1 - a)
    \mu)`, or of K hops of it (Diffuser, Proposition 5)."""
    check_probability('teleport', teleport)
    eigenvalue = np.asarray(eigenvalue)
    if hops is None:
        return teleport / (1 - (1 - teleport) * eigenvalue)
    check_count('hops', hops, at_least=0)
    # Large lambda = 1 - mu are damped only if eigenvalues are real and K is even or infinite.
    response = np.ones_like(eigenvalue, dtype=np.result_type(eigenvalue, float))
    for _ in range(hops):
        response = (1 - teleport) * eigenvalue * response + teleport
    return response


def heat_response(eigenvalue: np.ndarray, time: float) -> np.ndarray:
    r"""Map eigenvalues of the attention to those of the heat kernel, :math:`e^{-t (1 - \mu)}`."""
    check_positive('time', time)
    return np.exp(-time * (1 - np.asarray(eigenvalue)))


def receptive_field(
    graph: GraphLike, *, hops: int, queries: int | None = None, queries_seed: int = 0,
) -> np.ndarray:
    """Count the keys that reach a query within 0, 1, ... hops, exactly.

    A query reaches itself in 0 hops, because diffusion starts from its own value. The sets of
    queries are propagated as bits from queries to keys, so a hop moves O(edges x queries / 8)
    bytes.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        hops: Number of hops.
        queries: Number of randomly drawn queries to follow. If omitted, all queries are followed up
            to 8,192 tokens, and 512 queries beyond.
        queries_seed: Seed of the drawn queries.

    Returns:
        int64 array ``[hops + 1, queries]``.
    """
    check_count('hops', hops)
    graph = walks.square_graph(graph)
    n = graph.num_queries
    if queries is None:
        queries = n if n <= _ALL_QUERIES_UP_TO else _SAMPLED_QUERIES
    check_count('queries', queries)
    check_count('queries_seed', queries_seed, at_least=0)
    queries = min(queries, n)
    source = np.sort(np.random.default_rng(queries_seed).choice(n, queries, replace=False))

    reached_by = np.zeros((n, -(-queries // 8)), dtype=np.uint8)
    number = np.arange(queries)
    reached_by[source, number // 8] = 128 >> number % 8
    pointer, query, _ = (part.cpu().numpy() for part in graph.csc)
    field = [_count_bits(reached_by)[:queries]]
    for _ in tqdm(range(hops), desc='receptive fields', unit='hop', delay=2, disable=None):
        if (field[-1] < n).any():
            reached_by |= walks.bits_of_neighbours(reached_by, pointer, query)
        field.append(_count_bits(reached_by)[:queries])
    return np.stack(field)


def _count_bits(bits: np.ndarray) -> np.ndarray:
    """Return in how many rows each bit is set, int64 ``[8 * columns]``, for ``bits``, uint8
    ``[rows, columns]``."""
    # the largest number of rows whose sum fits into a byte; numpy adds bytes fastest
    most = np.iinfo(np.uint8).max
    return sum(np.unpackbits(bits[first:first + most], axis=1).sum(axis=0, dtype=np.uint8)
               .astype(np.int64) for first in range(0, len(bits), most))
