"""Expansion ratios of small graphs, over all sets of tokens."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

EXACT_UP_TO = 20  # tokens, a million sets


def exact_expansion(adjacency: sp.csr_array) -> dict[str, float]:
    r"""Return a dict with the smallest value of each measure of expansion over all sets of tokens.

    - conductance :math:`E(S, \bar S) / \min(\mathrm{vol}\,S, \mathrm{vol}\,\bar S)`, Cheeger's
      constant of the normalised Laplacian;
    - edge expansion :math:`E(S, \bar S) / |S|` over :math:`|S| \le n / 2` (Diffuser, Definition 4,
      with the intended complement);
    - vertex expansion :math:`|\partial S| / |S|` over the same sets (Definition 5), with the outer
      boundary (neighbours of S outside S) or the inner boundary (neighbours of the complement in
      S).

    Args:
        adjacency (scipy.sparse.csr_array): Symmetric ``[n, n]``, at least two tokens and at most
            ``EXACT_UP_TO``.

    Returns:
        dict of floats.

    Source: Feng et al., "Diffuser" (2023), App. D. networkx computes the ratio of one set, not the
    minimum: ``conductance``, ``edge_expansion``, ``node_boundary``.
    """
    n = adjacency.shape[0]
    weight = adjacency.toarray()
    np.fill_diagonal(weight, 0.)  # self-loops never leave a set
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    boundary, volume, size = _cuts(weight), _sums(degree), _sums(np.ones(n))
    reached = _neighbours(weight)
    member = np.arange(2**n, dtype=reached.dtype)
    outer = np.bitwise_count(reached & ~member)
    # the outer boundary of the complement, because reversing the array inverts the bits of each
    # index
    inner = outer[::-1]
    proper = slice(1, 2**n - 1)
    smaller_volume = np.minimum(volume, volume[::-1])
    conductance = np.divide(boundary, smaller_volume, out=np.zeros(2**n),
                            where=(boundary > 0) & (smaller_volume > 0))
    is_half = (size > 0) & (size <= n / 2)
    ratios = {'edge_expansion': boundary, 'vertex_expansion': outer,
              'inner_vertex_expansion': inner}
    return {'exact_conductance': float(conductance[proper].min())} | {
        name: float((values[is_half] / size[is_half]).min()) for name, values in ratios.items()}


def _sums(values: np.ndarray) -> np.ndarray:
    """Return for each set of tokens the sum of the values of its tokens, ``[2**n]``. Token i
    belongs to a set if bit i of the index of the set is 1."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _cuts(weight: np.ndarray) -> np.ndarray:
    """Return for each set of tokens the total weight of the edges that leave the set, ``[2**n]``,
    given the weights ``[n, n]``. Sets are numbered as in :func:`_sums`."""
    cuts = np.zeros(1)
    for node, row in enumerate(weight):
        cuts = np.concatenate([cuts, cuts + row.sum() - 2 * _sums(row[:node])])
    return cuts


def _neighbours(weight: np.ndarray) -> np.ndarray:
    """Return for each set of tokens the tokens that have a neighbour in the set, int64 ``[2**n]``.
    Bit i of an entry is 1 if token i has such a neighbour. Sets are numbered as in
    :func:`_sums`."""
    bits = (weight > 0) @ (1 << np.arange(weight.shape[0], dtype=np.int64))
    reached = np.zeros(1, np.int64)
    for own in bits:
        reached = np.concatenate([reached, reached | own])
    return reached
