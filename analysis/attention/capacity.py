"""The bipartite Cheeger number: conductance between queries and keys."""

from __future__ import annotations

import math

import scipy.sparse as sp

from analysis.expander.exact import EXACT_UP_TO, exact_expansion
from analysis.expander.sweep import fiedler_order, sweep
from analysis.spectrum import Laplacian
from analysis.spectrum.singular_values import join_queries_to_keys


def capacity_of(matrix: sp.csr_array) -> dict[str, object]:
    """Return bounds on the bipartite Cheeger number of an attention matrix ``[query, key]``, as a
    dict.

    The names in the dict are fields of :class:`analysis.attention.AttentionMatrix`. Queries and
    keys without edges are left out. If there are no edges, the dict is empty.
    """
    joined = join_queries_to_keys(matrix)
    has_edge = joined.sum(axis=1) > 0
    if not has_edge.any():
        return {}
    joined = sp.csr_array(joined[has_edge][:, has_edge])
    normalized = Laplacian(joined)
    pairs = normalized.smallest(2)
    lambda_2 = float(pairs.values[1])
    cut = sweep(joined, fiedler_order(normalized, pairs.vectors[:, 1]))
    exact = (exact_expansion(joined)['exact_conductance'] if joined.shape[0] <= EXACT_UP_TO
             else None)
    return dict(
        transport_gap=lambda_2, phi_below=lambda_2 / 2,
        phi_above=min(cut['sweep_conductance'], math.sqrt(2 * lambda_2)), phi=exact)
