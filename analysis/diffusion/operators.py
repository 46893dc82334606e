"""The matrices of K hops of diffusion, and their limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from analysis.checks import check_count, check_probability

MAX_DENSE = 2048


def operator(attention: sp.csr_array, hops: int, teleport: float) -> np.ndarray:
    """Return the matrix ``[n, n]`` that maps the values of all tokens to their values after K hops
    of diffusion.

    Args:
        attention: Sparse array ``[query, key]`` of at most 2,048 tokens.
            :func:`analysis.walk.uniform_attention` returns such an array, and so does
            ``graph.to_scipy(weight)`` for the weights of a model.
        hops: Number of hops K.
        teleport: Probability of a restart, in (0, 1].

    Source: Diffuser, Eq. S.7.
    """
    check_count('hops', hops, at_least=0)
    *_, last = operators_by_hop(attention, hops, teleport)
    return last


def resolvent(attention: sp.csr_array, teleport: float) -> np.ndarray:
    r"""Return the limit of :func:`operator` for infinitely many hops, :math:`a (I - (1 - a)
    A)^{-1}`, ``[n, n]``.

    Source: Diffuser, Proposition 4.
    """
    check_probability('teleport', teleport)
    _check_dense(attention)
    identity = np.eye(attention.shape[0])
    return scipy.linalg.solve(identity - (1 - teleport) * attention, teleport * identity)


def operators_by_hop(attention: sp.csr_array, hops: int,
                     teleport: float) -> Iterator[np.ndarray]:
    """Yield the matrices of :func:`operator` after 0, 1, ... hops, each ``[n, n]`` (Diffuser, Eq.
    S.7)."""
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
