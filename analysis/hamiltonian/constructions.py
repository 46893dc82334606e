"""The first stage of the search: paths that theorems guarantee, and their construction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp


def _in_order(links: sp.csr_array) -> range | None:
    n = links.shape[0]
    if links.diagonal(1).all():
        return range(n)
    return range(n - 1, -1, -1) if links.diagonal(-1).all() else None


def _tournament_path(links: sp.csr_array) -> list[int] | None:
    """Build a Hamiltonian path by inserting one token after the other. Return ``None`` if a token
    does not fit.

    Every token fits if every two tokens are joined (Rédei, 1934).

    Args:
        links: Sparse array ``[n, n]`` whose row j marks the tokens that may follow token j in a
            path.
    """
    n = links.shape[0]
    if links.maximum(links.T).nnz < n * (n - 1):
        return None
    may_precede = links.toarray().astype(bool)
    path = [0]
    for token in range(1, n):
        later = may_precede[token, path]
        path.insert(int(later.argmax()) if later.any() else len(path), token)
    return path


def _ore_path(links: sp.csr_array) -> np.ndarray | None:
    """Build a Hamiltonian path by Palmer's proof of Ore's theorem (1960). Return ``None`` if this
    fails.

    A path becomes a cycle by an additional token that is joined to all others. If two neighbours on
    the cycle are not joined, the degrees guarantee a segment of the cycle whose reversal joins
    them.

    Args:
        links: Sparse array ``[n, n]`` whose row j marks the tokens that may follow token j in a
            path.
    """
    n = links.shape[0]
    if links.nnz < n * (n - 1) / 2:  # degree sums of at least n - 1 imply this number of edges
        return None
    joined = np.ones((n + 1, n + 1), dtype=bool)
    joined[:n, :n] = links.toarray() > 0
    np.fill_diagonal(joined[:n, :n], True)
    degree = np.diff(links.indptr)
    if not (joined[:n, :n] | (degree[:, None] + degree >= n - 1)).all():
        return None
    cycle = np.arange(n + 1)
    while True:
        following = np.roll(cycle, -1)
        gaps = np.flatnonzero(~joined[cycle, following])
        if gaps.size == 0:
            extra = int(np.flatnonzero(cycle == n)[0])
            return np.roll(cycle, -extra)[1:]
        cycle = np.roll(cycle, -gaps[0] - 1)  # the gap is now between the last and the first
        first, last = cycle[0], cycle[-1]
        bridge = np.flatnonzero(joined[last, cycle[:-1]] & joined[first, cycle[1:]])[0]
        cycle[:bridge + 1] = cycle[:bridge + 1][::-1]


_Construction = Callable[[sp.csr_array], 'list[int] | np.ndarray | range | None']
DIRECTED_CONSTRUCTIONS: dict[str, _Construction] = {
    'order of the tokens': _in_order, 'tournament': _tournament_path}
SYMMETRIC_CONSTRUCTIONS: dict[str, _Construction] = {
    'order of the tokens': _in_order, "Ore's theorem": _ore_path}
