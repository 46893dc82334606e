"""The sweep cut: the best cut along the second eigenvector."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from analysis.spectrum import Laplacian


def fiedler_order(normalized: Laplacian, vector: np.ndarray) -> np.ndarray:
    """Return the nodes sorted by their entries of :math:`D^{-1/2} v_2`, int ``[n]``.

    :math:`v_2` is ``vector``, the second eigenvector of ``normalized``. If the graph has several
    components, they follow one another, the smallest volume first.
    """
    if normalized.num_components > 1:
        volume = np.bincount(normalized.component, weights=normalized.degree)
        return np.lexsort((normalized.component, volume[normalized.component]))
    return np.argsort(vector / np.sqrt(np.maximum(normalized.degree, 1e-300)), kind='stable')


def sweep(adjacency: sp.csr_array, order: np.ndarray) -> dict[str, object]:
    """Compute the conductance of the first 1, 2, ... nodes in an order, and find the best such set.

    Args:
        adjacency: Symmetric adjacency matrix ``[n, n]``.
        order: The nodes in the order of the sweep, int ``[n]``.

    Returns:
        dict: The conductances, and the set with the lowest conductance. Names are fields of
        :class:`analysis.expander.Expansion`.
    """
    n = order.size
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    degree = adjacency.sum(axis=1)
    row = np.repeat(np.arange(n), np.diff(adjacency.indptr))
    is_inside = place[adjacency.indices] <= place[row]
    weight_inside = np.bincount(row, weights=adjacency.data * is_inside, minlength=n)
    loops = adjacency.diagonal()
    # A node that enters S removes its edges to S from the cut and adds its other edges. Its
    # self-loop changes nothing.
    opened = degree - 2 * weight_inside + loops
    boundary = np.cumsum(opened[order])[:-1]
    volume = np.cumsum(degree[order])[:-1]
    smaller_volume = np.minimum(volume, degree.sum() - volume)
    conductance = np.divide(boundary, smaller_volume, out=np.zeros(n - 1), where=boundary > 0)
    best = int(conductance.argmin())
    is_prefix = volume[best] <= degree.sum() / 2
    witness = np.sort(order[:best + 1] if is_prefix else order[best + 1:])
    smaller_size = min(witness.size, n - witness.size)
    return dict(
        sweep_conductance=float(conductance[best]), sweep_size=int(witness.size),
        sweep_volume=float(smaller_volume[best]), sweep_boundary=float(boundary[best]),
        sweep_expansion=float(boundary[best]) / smaller_size, sweep_set=witness,
        sweep_conductances=conductance)
