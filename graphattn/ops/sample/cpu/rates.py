"""The rates of draws of all pairs, as arrays for compiled loops, and sums of rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from graphattn._jit import REORDERED_SUMS, jit
from graphattn.ops.sample.cpu.drawing import draw_rows, fill_tables
from graphattn.ops.sample.cpu.rows import PRODUCT, TABLE_ENTRY, Rows, from_zero, in_threads
from graphattn.ops.sample.factor_model import FactorModel


def pair_factors(model: FactorModel) -> tuple[Tensor, Tensor]:
    """Return two detached matrices whose product has the edge probabilities :math:`p_{ij}`."""
    mixed_query = model.mixed_query().detach()
    return mixed_query, model.key_factor.detach().to(mixed_query.dtype).contiguous()


def pair_arrays(model: FactorModel) -> tuple[np.ndarray, ...]:
    """Return :func:`pair_factors` as arrays, and where queries and keys of segments begin."""
    query, key_factor = pair_factors(model)
    query_ptr, key_ptr = model.segments.ptrs
    return query.numpy(), key_factor.numpy(), query_ptr.numpy(), key_ptr.numpy()


class Rates:
    """Rates at which keys are drawn, edge probability plus exploration, as a product of two
    matrices."""

    def __init__(self, model: FactorModel):
        query, key_factor = model.rate_factors()
        self.query, self.key_factor = query.numpy(), key_factor.detach().contiguous().numpy()
        self.columns = key_factor.t().contiguous().numpy()
        self.key_ptr = model.key_ptr.numpy()
        self.query_segment = model.segments.of_queries().numpy()
        self.mass, self.peak = np.zeros((2, model.num_segments, len(self.columns)))
        self._for_each_column(_reduce_column, PRODUCT, self.mass, self.peak)

    def of_queries(self) -> np.ndarray:
        return self._per_query(self.mass)

    def bounds(self) -> np.ndarray:
        return self._per_query(self.peak)

    def draw(self, num_draws: np.ndarray, seed: np.uint64) -> Rows:
        """Return the distinct keys among ``num_draws[i]`` draws of each query i, by their rates."""
        tables = np.empty(self.columns.shape, np.uint64)
        self._for_each_column(fill_tables, TABLE_ENTRY, self.mass, tables)
        capacity = np.minimum(num_draws, np.diff(self.key_ptr)[self.query_segment])
        begin = from_zero(capacity)[:-1]
        rows = Rows(np.empty(capacity.sum(), np.uint32), begin, np.empty_like(begin))
        in_threads(draw_rows, from_zero(num_draws), seed, num_draws, self.query, self.mass,
                   self.query_segment, self.key_ptr, tables, *rows)
        return rows

    def _for_each_column(self, kernel: Callable, draws_per_entry: float, *arguments) -> None:
        # an item is a cluster of a segment
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
    for i in range(first, last):
        segment = query_segment[i]
        total[i] = 0.
        for v in range(query.shape[1]):
            total[i] += query[i, v] * per_cluster[segment, v]


@jit(fastmath=REORDERED_SUMS)
def _reduce_column(first, last, columns, key_ptr, mass, peak):
    # items are numbered v * num_segments + segment
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
    total = x.dtype.type(0)
    for v in range(x.shape[1]):
        total += x[i, v] * y[j, v]
    return total


@jit(fastmath=REORDERED_SUMS)
def sum_of_products(query, key, query_ptr, key_ptr):
    """Return the sum of the dot products of all pairs inside segments, in O(nodes * k)."""
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
