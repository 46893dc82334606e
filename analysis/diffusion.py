"""What K hops of attention diffusion do: to the spectrum, to the receptive field, and how far they
are from infinitely many.

::

    python -m analysis.diffusion
    python -m analysis.diffusion --pattern 'SlidingWindow(4)' 'SlidingWindow(2) | RandomKeys(4)'
    python -m analysis.diffusion --pattern diffuser --n 16384 --spectra false
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from analysis.command import Results, ask
from analysis.graphs import GraphLike
from analysis.result import Result
from analysis.walk import (
    check_count,
    check_probability,
    component_eigenvalues,
    is_symmetric,
    square_graph,
    strong_components,
    uniform_attention,
)

_LARGEST_DENSE = 2048
_ALL_QUERIES_UP_TO = 8192
_SAMPLED_QUERIES = 512
_BYTES_AT_ONCE = 2**26


@dataclass(frozen=True)
class Diffusion(Result):
    """What diffusion does on a graph.

    Arrays over hops begin at hop 0. Without ``spectra`` the last six but ``distance_bound`` are
    empty, and their scalars ``None``.
    """

    num_tokens: int
    is_symmetric: bool
    teleport: float
    hops: int
    time: float
    queries: int  #: How many queries' receptive fields were followed.
    field_at_one: float  #: Mean receptive field after one hop, in keys.
    field_at_last: float
    hops_to_reach_all: int | None  #: Until every followed query is reached by every key.
    distance_at_last: float | None
    imaginary: float | None  #: Largest imaginary part of the attention's eigenvalues.
    response_error: float | None  #: Largest difference that infinitely many hops would make.
    prediction_error: float | None  #: From the operator's own eigenvalues to the predicted ones.
    field_mean: np.ndarray
    field_min: np.ndarray
    field_max: np.ndarray
    distance: np.ndarray  #: To the resolvent, largest absolute row sum.
    distance_bound: np.ndarray
    distance_frobenius: np.ndarray  #: To the resolvent, Frobenius norm.
    eigenvalue: np.ndarray  #: Of the attention, largest modulus first.
    response: np.ndarray  #: Of ``eigenvalue`` after the hops.
    eigenvalue_after: np.ndarray  #: Of the operator itself, largest modulus first.


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
    r"""Diffusion of attention that weighs all keys of a query alike.

    .. math::
        M_0 = I, \quad M_{k+1} = (1 - a) A M_k + a I, \qquad M_\infty = a (I - (1 - a) A)^{-1}

    The last weight of :math:`M_K` is :math:`(1 - a)^K`, so that its weights sum to 1: at a = 0.1
    and K = 5 there is 0.59 on :math:`A^5`. With the norm of largest absolute row sums

    .. math::
        M_K - M_\infty = (1 - a)^K A^K (I - M_\infty), \qquad
        \lVert M_K - M_\infty \rVert_\infty \le 2 (1 - a)^{K+1} .

    Attention whose own powers converge comes closer than this bound; no weights make it so.

    To be reached by all keys takes ``hops_to_reach_all`` hops. The universality of the paper
    takes more hops than tokens, and is no matter of reach alone.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        hops: Number of hops K.
        teleport: Probability a of a restart.
        time: Of the heat kernel that is drawn beside it, in mean hops.
        queries: How many queries, drawn at random, are followed for receptive fields. If
            omitted, all up to 8,192 tokens and 512 beyond.
        queries_seed: Seed of that draw.
        spectra: Whether to form the operators, up to 2,048 tokens, for eigenvalues and distances.

    Returns:
        Diffusion.

    Raises:
        TypeError, ValueError: An argument is wrong, or the graph too large for ``spectra``.

    Source: Diffuser, Eq. S.6, S.7, S.10, Propositions 4 and 5.

    Example:
        >>> import networkx as nx
        >>> result = diffusion(nx.cycle_graph(9), hops=2)
        >>> result.field_mean
        array([1., 3., 5.])
    """
    check_count('hops', hops)
    check_probability('teleport', teleport)
    _check_time(time)
    attention = uniform_attention(graph)
    n = attention.shape[0]
    if spectra and n > _LARGEST_DENSE:
        raise ValueError(f"'graph' must have at most {_LARGEST_DENSE} tokens for spectra and "
                         f"distances (got {n}); take fewer, or spectra=False for receptive "
                         f"fields alone")
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


def ppr_response(eigenvalue: np.ndarray, teleport: float, hops: int | None = None) -> np.ndarray:
    r"""What personalised PageRank makes of eigenvalues of the attention.

    .. math::
        \tilde\mu = \frac{a}{1 - (1 - a) \mu}, \qquad
        \tilde\lambda = 1 - \tilde\mu = \frac{(1 - a) \lambda}{a + (1 - a) \lambda}
        \quad \text{for } \lambda = 1 - \mu

    or, after K hops, by the recursion of the diffusion itself. The formulas hold for complex
    eigenvalues too, and for those of a matrix that is not diagonalisable. Damping of large
    :math:`\lambda` needs more: real eigenvalues, and even K or K to infinity. At a = 0.1 and
    K = 5, :math:`\lambda = 2` becomes 1.51, where the limit is 0.947.

    Args:
        eigenvalue: :math:`\mu`, real or complex, of modulus at most 1, of any shape.
        teleport: Probability a of a restart, in (0, 1].
        hops: Number of hops K, infinitely many if omitted.

    Returns:
        :math:`\tilde\mu`, an array like ``eigenvalue``.

    Source: Diffuser, Eq. S.7, S.10 and Proposition 5.
    """
    check_probability('teleport', teleport)
    eigenvalue = np.asarray(eigenvalue)
    if hops is None:
        return teleport / (1 - (1 - teleport) * eigenvalue)
    check_count('hops', hops, at_least=0)
    response = np.ones_like(eigenvalue, dtype=np.result_type(eigenvalue, float))
    for _ in range(hops):
        response = (1 - teleport) * eigenvalue * response + teleport
    return response


def heat_response(eigenvalue: np.ndarray, time: float, hops: int | None = None) -> np.ndarray:
    r"""What the heat kernel makes of eigenvalues of the attention.

    .. math::
        \tilde\mu = e^{-t (1 - \mu)} = e^{-t \lambda}, \qquad
        \tilde\mu_K = e^{-t} \sum_{k=0}^{K} \frac{(t \mu)^k}{k!}

    Cut off after K hops the weights no longer sum to 1; they are not scaled.

    Args:
        eigenvalue: :math:`\mu`, real or complex, of any shape.
        time: t, the mean number of hops, positive.
        hops: Number of hops K, infinitely many if omitted.

    Returns:
        :math:`\tilde\mu`, an array like ``eigenvalue``.

    Source: Diffuser, Appendix A.
    """
    _check_time(time)
    eigenvalue = np.asarray(eigenvalue)
    if hops is None:
        return np.exp(-time * (1 - eigenvalue))
    check_count('hops', hops, at_least=0)
    term = np.full_like(eigenvalue, math.exp(-time), dtype=np.result_type(eigenvalue, float))
    response = term
    for hop in range(1, hops + 1):
        term = term * time * eigenvalue / hop
        response = response + term
    return response


def operator(attention: sp.csr_array, hops: int, teleport: float) -> np.ndarray:
    """The matrix ``[n, n]`` that K hops multiply the values by.

    Args:
        attention: ``[n, n]``, query over key, of at most 2,048 tokens: that of
            :func:`analysis.walk.uniform_attention`, or weights of a model by
            ``graph.to_scipy(weight)``.
        hops: Number of hops K.
        teleport: Probability of a restart, in (0, 1].

    Source: Diffuser, Eq. S.7.
    """
    check_count('hops', hops, at_least=0)
    *_, last = _operators_by_hop(attention, hops, teleport)
    return last


def resolvent(attention: sp.csr_array, teleport: float) -> np.ndarray:
    r"""The limit :math:`a (I - (1 - a) A)^{-1}` of :func:`operator`, ``[n, n]``.

    Source: Diffuser, Proposition 4.
    """
    check_probability('teleport', teleport)
    _check_dense(attention)
    identity = np.eye(attention.shape[0])
    return scipy.linalg.solve(identity - (1 - teleport) * attention, teleport * identity)


def receptive_field(
    graph: GraphLike, *, hops: int, queries: int | None = None, queries_seed: int = 0,
) -> np.ndarray:
    """How many keys reach a query within 0, 1, ... hops, exactly.

    A query reaches itself in no hop, for diffusion begins with its value. Sets of queries travel
    as bits from queries to keys, so a hop costs O(edges x queries / 8) bytes of traffic.

    Args:
        graph: As :func:`analysis.graphs.as_graph` takes it, with as many keys as queries.
        hops: Number of hops.
        queries: How many queries, drawn at random, are followed. If omitted, all up to 8,192
            tokens and 512 beyond.
        queries_seed: Seed of that draw.

    Returns:
        int64 array ``[hops + 1, queries]``.
    """
    check_count('hops', hops)
    graph = square_graph(graph)
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
    pointer, query, _ = (part.cpu().numpy() for part in graph.by_key)
    field = [_count_bits(reached_by)[:queries]]
    for _ in tqdm(range(hops), desc='receptive fields', unit='hop', delay=2):
        if (field[-1] < n).any():
            reached_by = _one_hop(reached_by, pointer, query)
        field.append(_count_bits(reached_by)[:queries])
    return np.stack(field)


def _one_hop(reached_by: np.ndarray, pointer: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Each key's bits, and those of the queries that attend to it."""
    after = reached_by.copy()
    edges_at_once = max(_BYTES_AT_ONCE // reached_by.shape[1], 1)
    attended = np.flatnonzero(np.diff(pointer))  # reduceat has no empty segments
    begin, end = pointer[attended], pointer[attended + 1]
    first = 0
    while first < len(attended):
        last = max(np.searchsorted(end, begin[first] + edges_at_once, side='right'), first + 1)
        edges = slice(begin[first], end[last - 1])
        gathered = np.bitwise_or.reduceat(reached_by[query[edges]],
                                          begin[first:last] - begin[first], axis=0)
        after[attended[first:last]] |= gathered
        first = last
    return after


def _count_bits(bits: np.ndarray) -> np.ndarray:
    """How often each bit is set over the rows, int64 ``[8 * columns]``."""
    most = np.iinfo(np.uint8).max  # of rows whose sum fits into a byte, which numpy adds fastest
    return sum(np.unpackbits(bits[first:first + most], axis=1).sum(axis=0, dtype=np.uint8)
               .astype(np.int64) for first in range(0, len(bits), most))


def _operators_by_hop(attention: sp.csr_array, hops: int,
                      teleport: float) -> Iterator[np.ndarray]:
    check_probability('teleport', teleport)
    _check_dense(attention)
    restart = teleport * np.eye(attention.shape[0])
    matrix = np.eye(attention.shape[0])
    yield matrix
    for _ in range(hops):
        matrix = (1 - teleport) * (attention @ matrix) + restart
        yield matrix


def _operators(attention: sp.csr_array, hops: int, teleport: float,
               spectra: bool) -> dict[str, np.ndarray | float | None]:
    """The fields of the result that take matrices ``[n, n]``."""
    if not spectra:
        scalars = 'distance_at_last', 'imaginary', 'response_error', 'prediction_error'
        arrays = ('distance', 'distance_frobenius', 'eigenvalue', 'response',
                  'eigenvalue_after')
        return dict.fromkeys(scalars) | dict.fromkeys(arrays, np.array([]))
    limit = resolvent(attention, teleport)
    distance, frobenius = [], []
    for matrix in tqdm(_operators_by_hop(attention, hops, teleport), total=hops + 1,
                       desc='operators', unit='hop', delay=2):
        rest = matrix - limit
        distance.append(np.abs(rest).sum(axis=1).max())
        frobenius.append(np.linalg.norm(rest))
    eigenvalue = _eigenvalues(attention, attention)
    response = ppr_response(eigenvalue, teleport, hops)
    eigenvalue_after = _eigenvalues(matrix, attention)
    apart = np.abs(response[:, None] - eigenvalue_after)
    return {
        'distance_at_last': float(distance[-1]),
        'imaginary': float(np.abs(eigenvalue.imag).max()),
        'response_error': float(np.abs(response - ppr_response(eigenvalue, teleport)).max()),
        'prediction_error': float(max(apart.min(axis=0).max(), apart.min(axis=1).max())),
        'distance': np.array(distance), 'distance_frobenius': np.array(frobenius),
        'eigenvalue': eigenvalue, 'response': response, 'eigenvalue_after': eigenvalue_after}


def _eigenvalues(matrix: np.ndarray | sp.csr_array, attention: sp.csr_array) -> np.ndarray:
    """Eigenvalues of the attention or a polynomial in it, largest modulus first."""
    if not is_symmetric(attention):
        return component_eigenvalues(matrix, strong_components(attention))
    # Of a symmetric graph D^(1/2) A D^(-1/2) is symmetric, D being its degrees.
    root = np.sqrt(np.maximum(np.diff(attention.indptr), 1))
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    values = np.linalg.eigvalsh(root[:, None] * dense / root)
    return values[np.argsort(-np.abs(values), kind='stable')]


def _check_time(time: float) -> None:
    if not isinstance(time, Real) or isinstance(time, bool):
        raise TypeError(f"'time' must be a number (got {type(time).__name__})")
    if not (math.isfinite(time) and time > 0):
        raise ValueError(f"'time' must be positive (got {time})")


def _check_dense(attention: sp.csr_array) -> None:
    if not sp.issparse(attention) or attention.shape[0] != attention.shape[-1]:
        raise TypeError("'attention' must be a square scipy sparse array [query, key]; see "
                        "uniform_attention and BipartiteGraph.to_scipy")
    if attention.shape[0] > _LARGEST_DENSE:
        raise ValueError(f"'attention' must have at most {_LARGEST_DENSE} tokens to be inverted "
                         f"or multiplied out (got {attention.shape[0]}); take fewer")


# Drawing #############################################################################


def draw(results: Results) -> Figure:
    """Responses, receptive fields, distances to the resolvent, and eigenvalues after the hops."""
    samples = [sample for samples in results.values() for sample in samples]
    has_spectra = samples[0].distance.size > 0
    figure = Figure(figsize=(10, 8 if has_spectra else 4.4), layout='constrained')
    axes = figure.subplots(2 if has_spectra else 1, 2).ravel()
    _draw_responses(axes[0], samples[0])
    for number, (label, of_label) in enumerate(results.items()):
        for position, sample in enumerate(of_label):
            style = {'color': f'C{number % 10}', 'label': None if position else label}
            _draw_field(axes[1], sample, **style)
            if has_spectra:
                axes[2].plot(sample.distance, '.-', **style)
                _draw_eigenvalues(axes[3], sample, **style)
    axes[1].set(title='Receptive field (band: least to most)', xlabel='hops',
                ylabel='keys that reach a query')
    if has_spectra:
        widest = max(samples, key=lambda sample: sample.hops)
        axes[2].plot(widest.distance_bound, '--', color='0.4',
                     label='bound $2(1-a)^{K+1}$')
        axes[2].set(title='Distance to infinitely many hops', yscale='log', xlabel='hops K',
                    ylabel='largest absolute row sum')
        axes[2].set_ylim(bottom=min(0.1, axes[2].get_ylim()[0]), top=2.5)
        axes[3].set(title=f'Eigenvalues after {widest.hops} hops (o: predicted)',
                    xlabel=r'Re $\tilde\mu$', ylabel=r'Im $\tilde\mu$')
        axes[3].axhline(0, color='0.8', linewidth=0.8, zorder=0)
    for panel in axes[1:]:
        panel.grid(alpha=0.3)
    handles, labels = axes[2 if has_spectra else 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=2)
    return figure


def _draw_responses(axes: Axes, sample: Diffusion) -> None:
    laplacian = np.linspace(0, 2, 201)
    drawn_hops = sorted({1, 2, 3, 5, sample.hops})
    shades = colormaps['viridis_r'](np.linspace(0.25, 0.75, len(drawn_hops)))
    for hops, shade in zip(drawn_hops, shades):
        axes.plot(laplacian, 1 - ppr_response(1 - laplacian, sample.teleport, hops), color=shade,
                  label=f'K = {hops}')
    axes.plot(laplacian, 1 - ppr_response(1 - laplacian, sample.teleport), color='black',
              label=r'K = $\infty$')
    axes.plot(laplacian, 1 - heat_response(1 - laplacian, sample.time), '--', color='C3',
              label=f'heat, t = {sample.time:g}')
    axes.set(title=f'Response of the Laplacian, a = {sample.teleport:g}',
             xlabel=r'eigenvalue $\lambda$ of the graph',
             ylabel=r'$\tilde\lambda$ after diffusion')
    axes.legend(fontsize='small', ncols=2)
    axes.grid(alpha=0.3)


def _draw_field(axes: Axes, sample: Diffusion, **style) -> None:
    hop = np.arange(len(sample.field_mean))
    axes.plot(hop, sample.field_mean, '.-', **style)
    axes.fill_between(hop, sample.field_min, sample.field_max, color=style['color'], alpha=0.15)


def _draw_eigenvalues(axes: Axes, sample: Diffusion, **style) -> None:
    axes.plot(sample.response.real, sample.response.imag, 'o', markersize=7, fillstyle='none',
              color=style['color'], alpha=0.4)
    axes.plot(sample.eigenvalue_after.real, sample.eigenvalue_after.imag, '.', markersize=3,
              color=style['color'])


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    ask(diffusion, draw, arguments, name='diffusion',
        pattern='SlidingWindow(2) | RandomKeys(2)', n=512)


if __name__ == '__main__':
    main()
