"""The rates of draws of all pairs, as arrays for compiled loops, and sums of rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from graphattn._jit import REORDERED_SUMS, jit
from graphattn.ops.sample.cpu.alias_tables import fill_tables
from graphattn.ops.sample.cpu.drawing import draw_rows
from graphattn.ops.sample.cpu.rows import PRODUCT, TABLE_ENTRY, Rows, from_zero, in_threads
from graphattn.ops.sample.factor_model import FactorModel


def pair_factors(model: FactorModel) -> tuple[Tensor, Tensor]:
    """Return two detached matrices whose product has the edge probabilities :math:`p_{ij}`: the
    memberships of queries times the mixing, ``[num_queries, k]``, and the memberships of keys,
    ``[num_keys, k]``."""
    mixed_query = model.mixed_query().detach()
    return mixed_query, model.key_factor.detach().to(mixed_query.dtype).contiguous()


def pair_arrays(model: FactorModel) -> tuple[np.ndarray, ...]:
    """Return four arrays: the two results of :func:`pair_factors`, and where the queries and the
    keys of each sequence (segment) begin."""
    query, key_factor = pair_factors(model)
    query_ptr, key_ptr = model.segments.ptrs
    return query.numpy(), key_factor.numpy(), query_ptr.numpy(), key_ptr.numpy()


class Rates:
    r"""The rates at which random keys are drawn for each query, as the product of a matrix of
    queries and a matrix of keys. The rate of a pair is its edge probability plus the exploration
    probability, :math:`p_{ij} + \delta`. Both matrices have a column for each cluster. If there is
    exploration, one more column stands for the rate :math:`\delta`, which all pairs share. The sum
    and the maximum of each column over the keys of a sequence (segment) are stored too."""

    def __init__(self, model: FactorModel):
        query, key_factor = model.rate_factors()
        self.query, self.key_factor = query.numpy(), key_factor.detach().contiguous().numpy()
        self.columns = key_factor.t().contiguous().numpy()
        self.key_ptr = model.key_ptr.numpy()
        self.query_segment = model.segments.of_queries().numpy()
        self.mass, self.peak = np.zeros((2, model.num_segments, len(self.columns)))
        self._for_each_column(_reduce_column, PRODUCT, self.mass, self.peak)

    def of_queries(self) -> np.ndarray:
        """Return the sum of the rates of each query over the keys of its sequence (segment),
        float64 ``[num_queries]``."""
        return self._per_query(self.mass)

    def bounds(self) -> np.ndarray:
        """Return an upper bound of the rates of each query, float64 ``[num_queries]``."""
        return self._per_query(self.peak)

    def draw(self, num_draws: np.ndarray, seed: np.uint64) -> Rows:
        """Return the distinct keys among ``num_draws[i]`` random keys of each query i. The keys of
        a query are drawn in proportion to their rates.

        Each draw chooses a cluster v in proportion to ``query[i, v] * mass[segment, v]``, then a
        key in proportion to ``columns[v]``.
        """
        tables = np.empty(self.columns.shape, np.uint64)
        self._for_each_column(fill_tables, TABLE_ENTRY, self.mass, tables)
        capacity = np.minimum(num_draws, np.diff(self.key_ptr)[self.query_segment])
        begin = from_zero(capacity)[:-1]
        rows = Rows(np.empty(capacity.sum(), np.uint32), begin, np.empty_like(begin))
        in_threads(draw_rows, from_zero(num_draws), seed, num_draws, self.query, self.mass,
                   self.query_segment, self.key_ptr, tables, *rows)
        return rows

    def _for_each_column(self, kernel: Callable, draws_per_entry: float, *arguments) -> None:
        """Run ``kernel(first, last, columns, key_ptr, *arguments)`` in threads, with an item for
        each cluster of each sequence. Per key, an item takes about the time of ``draws_per_entry``
        random keys."""
        num_columns = self.mass.size
        work = np.linspace(0, draws_per_entry * self.columns.size, num_columns + 1)
        in_threads(kernel, work, self.columns, self.key_ptr, *arguments)

    def _per_query(self, per_cluster: np.ndarray) -> np.ndarray:
        total = np.empty(len(self.query))
        work = np.arange(len(self.query) + 1) * (self.query.shape[1] * PRODUCT)
        in_threads(_dot_rows, work, self.query, per_cluster, self.query_segment, total)
        return total


@jit(fastmath=REORDERED_SUMS)
def _dot_rows(first, last, query, per_cluster, query_segment, total):
    """Write the dot product of ``query[i]`` and ``per_cluster[query_segment[i]]`` to ``total[i]``,
    for each i in ``first:last``."""
    for i in range(first, last):
        segment = query_segment[i]
        total[i] = 0.
        for v in range(query.shape[1]):
            total[i] += query[i, v] * per_cluster[segment, v]


@jit(fastmath=REORDERED_SUMS)
def _reduce_column(first, last, columns, key_ptr, mass, peak):
    """Write the sum and the maximum of ``columns[v]`` over the keys of each sequence to
    ``mass[sequence, v]`` and ``peak[sequence, v]``. The items ``first:last`` are pairs of a cluster
    v and a sequence, numbered ``v * num_sequences + sequence``."""
    num_segments = len(key_ptr) - 1
    for item in range(first, last):
        column, segment = item // num_segments, item % num_segments
        weight, total, largest = columns[column, key_ptr[segment]:key_ptr[segment + 1]], 0., 0.
        for j in range(len(weight)):
            total += weight[j]
            largest = max(largest, weight[j])
        mass[segment, column], peak[segment, column] = total, largest


@jit(fastmath=REORDERED_SUMS)
def product_of_rows(x, i, y, j):
    """Return the dot product of ``x[i]`` and ``y[j]``."""
    total = x.dtype.type(0)
    for v in range(x.shape[1]):
        total += x[i, v] * y[j, v]
    return total


@jit(fastmath=REORDERED_SUMS)
def sum_of_products(query, key, query_ptr, key_ptr):
    """Return the sum of the dot products of ``query[i]`` and ``key[j]`` over all pairs i and j
    inside the sequences (segments), in O(nodes * k)."""
    num_clusters = query.shape[1]
    query_mass, key_mass, total = np.empty(num_clusters), np.empty(num_clusters), 0.
    for segment in range(len(query_ptr) - 1):
        query_mass[:], key_mass[:] = 0., 0.
        for i in range(query_ptr[segment], query_ptr[segment + 1]):
            for v in range(num_clusters):
                query_mass[v] += query[i, v]
        for j in range(key_ptr[segment], key_ptr[segment + 1]):
            for v in range(num_clusters):
                key_mass[v] += key[j, v]
        for v in range(num_clusters):
            total += query_mass[v] * key_mass[v]
    return total
