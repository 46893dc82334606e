"""Lemma 1 of SBM-Transformer: Hamiltonian cycles and paths of random graphs."""

from __future__ import annotations

import math

from analysis.checks import check_count


def expected_hamiltonian_cycles(n: int, p: float) -> float:
    r"""Return the expected number of Hamiltonian cycles of a directed random graph,

    .. math::
        (n - 1)! \; p^n.

    Lemma 1 shows only that it is at least 1, which does not imply a cycle or a path: at the lemma's
    density (:func:`lemma_1_density`), a few graphs have very many cycles and nearly all have none,
    see :func:`hamiltonian_path_bound`.

    Args:
        n (int): Number of tokens, at least 2.
        p (float): Probability of each of the n (n - 1) edges.

    Returns:
        float, ``inf`` beyond the range of a float.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range.

    Source: SBM-Transformer, App. A, Lemma 1.

    Example:
        >>> from analysis.universality import expected_hamiltonian_cycles, lemma_1_density
        >>> round(expected_hamiltonian_cycles(64, lemma_1_density(64)), 1)
        20.1
    """
    _check_random_graph(n, p)
    if p == 0:
        return 0.
    log_count = math.lgamma(n) + n * math.log(p)
    return math.exp(log_count) if log_count < 709 else math.inf


def lemma_1_density(n: int) -> float:
    r"""Return the sufficient density according to Lemma 1, :math:`\frac{e}{n} n^{1/n}`.

    In fact, a path exists with high probability only from :math:`p = (\ln n + \omega(1)) / n` on,
    with :math:`n \ln n` edges rather than O(n).

    Source: SBM-Transformer, App. A, Lemma 1, whose last line misprints :math:`n^{1/n}`; Frieze,
    "An algorithm for finding Hamilton cycles in random directed graphs" (1988).
    """
    _check_random_graph(n, 0.)
    return min(1., math.e / n * n**(1 / n))


def hamiltonian_path_bound(n: int, p: float) -> float:
    r"""Return an upper bound on the probability that a directed random graph has a Hamiltonian
    path.

    It is the probability that all tokens except the first attend to another token; with
    :math:`q = 1 - (1 - p)^{n - 1}`,

    .. math::
        q^n + n \, q^{n - 1} (1 - q).

    Args:
        n (int): Number of tokens, at least 2.
        p (float): Probability of each of the n (n - 1) edges.

    Returns:
        float.

    Raises:
        TypeError, ValueError: An argument is of the wrong type or out of range.

    Example:
        >>> from analysis.universality import hamiltonian_path_bound, lemma_1_density
        >>> f'{hamiltonian_path_bound(1024, lemma_1_density(1024)):.0e}'
        '1e-28'
    """
    _check_random_graph(n, p)
    attends = 1 - (1 - p)**(n - 1)
    return attends**n + n * attends**(n - 1) * (1 - attends)


def _check_random_graph(n: int, p: float) -> None:
    check_count('n', n, at_least=2)
    if not 0 <= p <= 1:
        raise ValueError(f"'p' must be in [0, 1] (got {p})")
