"""The random walk along a graph: its transition matrix, its limits and its rates."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.linalg import solve_triangular
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, splu
from tqdm import tqdm

from analysis.graphs import GraphLike, as_graph
from graphattn import BipartiteGraph

MOVED = 1e-13  # a hundred times rounding
ROUNDING = 1e-12  # rounding error of sums of probabilities; smaller values count as 0
MAX_DENSE = 4096  # number of tokens; a matrix of this size takes 128 MiB and is solved in seconds
_CERTAIN = 1e-9  # worst accuracy of the limits that are found by taking steps
_MAX_STEPS = 2000
BYTES_AT_ONCE = 2**26
# number of tokens censored together, so that one matrix product updates all other tokens
_PANEL = 128
_MAX_SYMMETRIC = 2048  # maximum number of tokens for all eigenvalues in seconds
_MAX_GENERAL = 1024
_ACCURACY = 1e-6  # required accuracy of a modulus


def square_graph(graph: GraphLike) -> BipartiteGraph:
    """Return the graph of an object, and raise an error unless it has as many keys as queries, so
    that hops can be repeated."""
    graph = as_graph(graph)
    if graph.num_queries != graph.num_keys or graph.num_queries == 0:
        raise ValueError(f"'graph' must have as many keys as queries, and at least one of each, "
                         f"because attention is applied repeatedly (got {graph})")
    return graph


def uniform_attention(graph: GraphLike, keyless: Literal['zero', 'stay'] = 'zero') -> sp.csr_array:
    """Return the attention matrix with equal weights for all keys of a query."""
    graph = square_graph(graph)
    adjacency = graph.to_scipy()
    degree = graph.in_degree().cpu().numpy()
    attention = sp.diags_array(1 / np.maximum(degree, 1)) @ adjacency
    if keyless == 'stay':
        attention = attention + sp.diags_array((degree == 0).astype(float))
    return sp.csr_array(attention)


def is_symmetric(attention: sp.csr_array) -> bool:
    edges = attention != 0
    return (edges != edges.T).nnz == 0


def strong_components(attention: sp.csr_array) -> np.ndarray:
    """Return the index of each token's strongly connected component, int32 ``[n]``."""
    return connected_components(attention, connection='strong')[1]


def component_eigenvalues(matrix: np.ndarray | sp.csr_array, component: np.ndarray,
                          moved: float = 0.) -> np.ndarray:
    """Return all eigenvalues of a matrix that is block triangular, where a block is a component."""
    # Each component is solved separately, because the whole matrix can be far from normal: for 256
    # pairs of tokens where each token also attends to the pair before, LAPACK finds a second
    # modulus of 0.93 in it instead of 0.5.
    diagonal, solved = matrix.diagonal(), []
    for tokens in members_of(component):
        block = matrix[tokens][:, tokens] if len(tokens) > 1 else diagonal[tokens][:, None]
        block = block.toarray() if sp.issparse(block) else block
        solved.append(np.linalg.eigvals(_moved(block, moved) if moved and len(tokens) > 1
                                        else block))
    values = np.concatenate(solved).astype(complex)
    return values[np.argsort(-np.abs(values), kind='stable')]


def distance_of_sets(left: np.ndarray, right: np.ndarray) -> float:
    apart = np.abs(left[:, None] - right)
    return float(max(apart.min(axis=0).max(), apart.min(axis=1).max()))


# If noise much larger than rounding moves eigenvalues far, as of defective matrices, the
# eigenvalues without it are no more accurate.
def _moved(block: np.ndarray, size: float) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(block.shape)
    return block + noise * size / math.sqrt(len(block))


def members_of(component: np.ndarray) -> list[np.ndarray]:
    """Return an array of the tokens of each component, in ascending order, given the component of
    each token, ``[n]``."""
    order = np.argsort(component, kind='stable')
    return np.split(order, np.flatnonzero(np.diff(component[order])) + 1)


def bits_of_neighbours(bits: np.ndarray, pointer: np.ndarray, neighbour: np.ndarray) -> np.ndarray:
    """Return the union of the rows of ``bits`` of each token's neighbours, of which the first is at
    ``pointer`` in ``neighbour``."""
    after = np.zeros_like(bits)
    edges_at_once = max(BYTES_AT_ONCE // bits[:1].nbytes, 1)
    filled = np.flatnonzero(np.diff(pointer))  # reduceat does not support empty segments
    begin, end = pointer[filled], pointer[filled + 1]
    first = 0
    while first < len(filled):
        last = max(np.searchsorted(end, begin[first] + edges_at_once, side='right'), first + 1)
        edges = neighbour[begin[first]:end[last - 1]]
        after[filled[first:last]] = np.bitwise_or.reduceat(
            bits[edges], begin[first:last] - begin[first], axis=0)
        first = last
    return after


def closed_classes_of(walk: sp.csr_array, component: np.ndarray) -> list[np.ndarray]:
    """Return the components that a random walk never leaves, each as an array of tokens."""
    token, target = walk.nonzero()
    leaving = component[token][component[token] != component[target]]
    is_left = np.zeros(component.max() + 1, dtype=bool)
    is_left[leaving] = True
    return [members for members in members_of(component) if not is_left[component[members[0]]]]


def walk_within(walk: sp.csr_array, members: np.ndarray) -> sp.csr_array:
    """Return the transition matrix of a random walk among the tokens ``members``, which are sorted
    and which the walk never leaves."""
    rows = walk[members]
    return sp.csr_array((rows.data, np.searchsorted(members, rows.indices), rows.indptr),
                        shape=(len(members), len(members)))


def period_of(walk: sp.csr_array) -> int:
    """Return the period of an irreducible walk: the greatest common divisor of the lengths of its
    closed walks."""
    if walk.diagonal().any():
        return 1
    depth = dijkstra(walk, indices=0, unweighted=True).astype(int)
    token, target = walk.nonzero()
    return int(np.gcd.reduce(depth[token] + 1 - depth[target]))


def stationary_distribution(walk: sp.csr_array, closed: list[np.ndarray],
                            is_reversible: bool) -> np.ndarray:
    """Return the stationary distribution of a random walk, float64 ``[n]``."""
    stationary = np.zeros(walk.shape[0])
    degree = np.diff(walk.indptr).astype(float)
    for members in tqdm(closed, desc='stationary distribution', unit='class', delay=2,
                        disable=None):
        if is_reversible or len(members) == 1:
            mass = degree[members]
        else:
            mass = _stationary_of_class(walk_within(walk, members))
        stationary[members] = mass / mass.sum() * len(members)
    return stationary / stationary.sum()


def _stationary_of_class(walk: sp.csr_array) -> np.ndarray:
    n = walk.shape[0]
    if n <= MAX_DENSE:
        # Each token has a step to a token that is censored later, so no divisor is below 1 / n.
        order = np.argsort(dijkstra(walk.T, indices=0, unweighted=True), kind='stable')
        mass = np.empty(n)
        mass[order] = _by_state_reduction(walk[order][:, order].toarray())
        return mass
    try:
        _, vector = eigs(walk.T, k=1, which='LR', v0=np.ones(n))
    except ArpackNoConvergence as error:
        raise ValueError(f"'graph' must mix faster, because its stationary distribution did not "
                         f"converge with {n} tokens; use at most {MAX_DENSE} tokens") from error
    mass = np.abs(vector[:, 0].real)
    return np.where(mass < ROUNDING * mass.sum(), 0, mass)


def _by_state_reduction(walk: np.ndarray) -> np.ndarray:
    """Return the stationary distribution of an irreducible walk, float64 ``[n]``."""
    # Nothing is subtracted, so each probability has full relative accuracy.
    _censor(walk)
    mass = np.zeros(len(walk))
    mass[0] = 1
    for token in range(1, len(walk)):
        mass[token] = mass[:token] @ walk[:token, token]
        mass /= mass.sum()  # avoids overflow
    return mass


def _censor(walk: np.ndarray) -> None:
    """Remove all tokens except the first from a random walk, in place, the last token first, so
    that steps through removed tokens become direct steps."""
    # Below the diagonal stay the steps from each token to earlier tokens when later tokens are
    # censored; above it the visits of each token per visit of an earlier token. Source: Grassmann,
    # Taksar and Heyman (1985); O'Cinneide, Entrywise perturbation theory (1993).
    n = len(walk)
    for end in range(n, 1, -_PANEL):
        begin = max(end - _PANEL, 1)
        for token in range(end - 1, begin - 1, -1):
            censored = slice(token + 1, end)
            walk[token, :token] += walk[token, censored] @ walk[censored, :token]
            walk[:token, token] += walk[:token, censored] @ walk[censored, token]
            walk[:token, token] /= walk[token, :token].sum()
        walk[:begin, :begin] += walk[:begin, begin:end] @ walk[begin:end, :begin]


def restart_limits(walk: sp.csr_array, sources: np.ndarray, teleport: float,
                   stationary: np.ndarray) -> np.ndarray:
    """Return the limit distribution of the walk that restarts at its source, for each source, a
    matrix ``[n, starts]``."""
    if walk.shape[0] <= MAX_DENSE:
        return _limits_by_censoring(walk, sources, teleport)
    limits = _limits_by_steps(walk, sources, teleport, stationary)
    return _limits_by_solving(walk, sources, teleport) if limits is None else limits


def _limits_by_censoring(walk: sp.csr_array, sources: np.ndarray, teleport: float) -> np.ndarray:
    """Return the limit distributions of the restart walk, ``[n, starts]``, solved without
    subtractions."""
    n = walk.shape[0]
    # every restart leads to an additional token
    ending = np.zeros((n + 1, n + 1))
    ending[1:, 0] = teleport
    ending[1:, 1:] = (1 - teleport) * walk.toarray()
    _censor(ending)
    leaving = np.tril(ending, -1).sum(axis=1)[1:]
    steps, visits = ending[1:, 1:], np.zeros((n, len(sources)))
    visits[sources, np.arange(len(sources))] = teleport
    lower, upper = np.diag(leaving) - np.tril(steps, -1), -np.triu(steps, 1)
    visits = solve_triangular(lower, visits, trans='T', lower=True, check_finite=False)
    return solve_triangular(upper, visits, trans='T', unit_diagonal=True, check_finite=False)


def _limits_by_steps(walk: sp.csr_array, sources: np.ndarray, teleport: float,
                     stationary: np.ndarray) -> np.ndarray | None:
    """Return the limit distributions of the restart walk, ``[n, starts]``, or ``None`` if it
    forgets its start too slowly."""
    transpose = (1 - teleport) * walk.T.tocsr()
    limits = np.repeat(stationary[:, None], len(sources), axis=1)
    left = -limits
    left[sources, np.arange(len(sources))] += 1
    for _ in tqdm(range(_MAX_STEPS), desc='limits of the restart walk', unit='step', delay=2,
                  disable=None):
        limits += teleport * left
        left = transpose @ left
        if np.abs(left).sum(axis=0).max() <= ROUNDING:
            return limits
    return None


def _limits_by_solving(walk: sp.csr_array, sources: np.ndarray, teleport: float) -> np.ndarray:
    """Return the limit distributions of slowly mixing restart walks, ``[n, starts]``, from a sparse
    factorisation."""
    # Graphs that mix slowly have small separators, so the factors have few entries.
    matrix = (sp.eye_array(walk.shape[0]) - (1 - teleport) * walk.T).tocsc()
    restart = np.zeros((walk.shape[0], len(sources)))
    restart[sources, np.arange(len(sources))] = teleport
    try:
        limits = splu(matrix, diag_pivot_thresh=0).solve(restart)
        limits /= limits.sum(axis=0)
        # A step contracts the distance between two distributions to at most 1 - teleport of it.
        error = np.abs(restart - matrix @ limits).sum(axis=0).max() / teleport
    except RuntimeError:  # the matrix is singular up to rounding errors
        error = math.inf
    if not error <= _CERTAIN:
        raise ValueError(f"'teleport' is too small for a slowly mixing graph of {walk.shape[0]:,} "
                         f"tokens (got {teleport:g}); pass a larger 'teleport', or use at most "
                         f"{MAX_DENSE:,} tokens")
    return limits


def second_of_reversible(walk: sp.csr_array, stationary: np.ndarray) -> float | None:
    """Return the second largest modulus of the eigenvalues of a reversible random walk, given its
    stationary distribution; ``None`` without convergence."""
    n, root = len(stationary), np.sqrt(stationary)
    similar = sp.csr_array(sp.diags_array(root) @ walk @ sp.diags_array(1 / root))
    if n <= _MAX_SYMMETRIC:
        modulus = np.sort(np.abs(np.linalg.eigvalsh(similar.toarray())))
        return float(modulus[-2]) if n > 1 else 0.
    return _norm_without(root, similar.dot)


def second_modulus(walk: sp.csr_array, component: np.ndarray) -> float | None:
    """Return the second largest modulus of the eigenvalues of any random walk, given the strongly
    connected component of each token; ``None`` if rounding may change it."""
    if np.bincount(component).max() <= _MAX_GENERAL:
        second, when_moved = (_second(component_eigenvalues(walk, component, moved))
                              for moved in (0., MOVED))
        return second if abs(second - when_moved) <= _ACCURACY else None
    if component.max() > 0:
        return None
    try:
        (value, right), (other, left) = map(_second_pair, (walk, walk.T.tocsr()))
    except ArpackNoConvergence:
        return None
    if abs(other.conjugate() - value) < abs(other - value):
        left = left.conj()
    residual = np.linalg.norm(walk @ right - value * right)
    error = (residual + np.finfo(float).eps) / max(abs(left @ right), np.finfo(float).tiny)
    is_certain = max(error, abs(abs(value) - abs(other))) <= _ACCURACY
    return float(abs(value)) if is_certain else None


def _second(values: np.ndarray) -> float:
    return float(abs(values[1])) if len(values) > 1 else 0.


def _second_pair(walk: sp.csr_array) -> tuple[complex, np.ndarray]:
    # The next eigenvalues may be close by, so full precision might take hours.
    values, vectors = eigs(walk, k=2, which='LM', v0=_some_vector(walk.shape[0]), ncv=60,
                           tol=_ACCURACY / 1000, maxiter=100)  # eigenvectors may be oblique
    second = np.argsort(-np.abs(values), kind='stable')[1]
    return values[second], vectors[:, second]


def contraction(walk: sp.csr_array, stationary: np.ndarray) -> float | None:
    r"""Return the second singular value of :math:`\Pi^{1/2} P \, \Pi^{-1/2}` for a walk P with
    stationary distribution :math:`\pi`, or ``None`` if :math:`\pi` has zeros or has lost digits to
    underflow."""
    if stationary.min() < np.finfo(float).tiny:
        return None
    root = np.sqrt(stationary)
    similar = sp.csr_array(sp.diags_array(root) @ walk @ sp.diags_array(1 / root))
    if len(root) <= _MAX_GENERAL:
        values = scipy.linalg.svdvals(similar.toarray())
        return float(values[1]) if len(values) > 1 else 0.
    square = _norm_without(root, lambda vector: similar.T @ (similar @ vector))
    return None if square is None else math.sqrt(square)


def _norm_without(top: np.ndarray, product: Callable[[np.ndarray], np.ndarray]) -> float | None:
    """Return the largest modulus of the eigenvalues of a symmetric operator, except for its
    eigenvalue 1 with the eigenvector ``top``."""
    deflated = LinearOperator((len(top), len(top)), dtype=float,
                              matvec=lambda vector: product(vector) - top * (top @ vector))
    try:
        value = eigsh(deflated, k=1, which='LM', v0=_some_vector(len(top)), ncv=60, maxiter=300,
                      return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(abs(value[0]))


def _some_vector(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)
