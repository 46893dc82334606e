"""Random graphs by thinning, in loops for CPUs: pairs are drawn at higher rates, and some are
dropped, so that the distribution is exact."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch

from graphattn._jit import jit
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.cpu.drawing import draw_seed, random_bits, stream_of, uniform
from graphattn.ops.sample.cpu.rates import Rates, pair_arrays, product_of_rows, sum_of_products
from graphattn.ops.sample.cpu.rows import TABLE_ENTRY, from_zero, in_threads
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.methods import bound_is_too_high

__all__ = ['Thinning', 'faster_thinning', 'is_faster', 'is_less_work']

# Number of draws per pair above which trials of all pairs are faster than thinning. On one core,
# along 4,096 x 4,096 pairs with 16, 32 and 128 clusters:
#
# at 1 % of the pairs, trials took 21, 27 and 46 ms, and thinning 7, 8 and 12 ms;
# at 10 % of the pairs, trials took 28, 36 and 58 ms, and thinning 39, 35 and 45 ms;
# at 15 % of the pairs, trials took 32, 40 and 53 ms, and thinning 64, 59 and 79 ms.
_FASTER_BELOW = 0.1
_HIGHEST_BOUND = 0.9  # has a rate multiplier of 2.6; a bound of 1 would have infinity


class Thinning:
    """Sampler that draws pairs at higher rates, and then drops some."""

    # A pair with probability p, drawn at the rate c_i * p, appears with probability 1 - exp(-c_i *
    # p). This is at least p if c_i >= -log(1 - p) / p, which grows with p, so an upper bound of
    # query i will do. A pair that appears is kept with probability p / (1 - exp(-c_i * p)), at
    # least 1 / c_i, by a coin. This is nearly 1 for small bounds, so p must be computed only for
    # few pairs.
    def __init__(self, model: FactorModel):
        self.model, self.rates = model, Rates(model)
        self.bound = self.rates.bounds()
        self.rate_multiplier = _rate_multiplier(self.bound)

    @cached_property
    def num_draws(self) -> np.ndarray:
        return self.rate_multiplier * self.rates.of_queries()

    def sample(self, generator: torch.Generator | None) -> BipartiteGraph:
        if np.isinf(self.rate_multiplier).any():
            query = int(np.isinf(self.rate_multiplier).argmax())
            raise bound_is_too_high(self.bound[query], query)
        num_draws = torch.poisson(torch.from_numpy(self.num_draws), generator).long()
        return self.thinned(num_draws.numpy(), draw_seed(generator), draw_seed(generator))

    def thinned(self, num_draws: np.ndarray, seed: np.uint64,
                coin_seed: np.uint64) -> BipartiteGraph:
        """Return a graph from ``num_draws[i]`` random keys of each query i, of which coins drop
        some."""
        rates, rows = self.rates, self.rates.draw(num_draws, seed)
        first_key = rates.key_ptr[rates.query_segment]
        in_threads(_thin_rows, from_zero(rows.size), coin_seed, *rows, first_key,
                   self.rate_multiplier, rates.query, rates.key_factor)
        return rows.to_graph(self.model)


def faster_thinning(model: FactorModel) -> Thinning | None:
    """Return a sampler by thinning if it takes less time than a trial for each pair, else None."""
    sizes = model.num_keys * model.num_clusters, model.segments.num_pairs
    if not is_less_work(0, *sizes) or not is_less_work(_expected_edges(model), *sizes):
        return None
    thinning = Thinning(model)
    return thinning if is_faster(thinning.bound, thinning.num_draws, *sizes) else None


def _expected_edges(model: FactorModel) -> float:
    # at least as many random keys must be drawn
    return sum_of_products(*pair_arrays(model)) + model.exploration * model.segments.num_pairs


def is_faster(bound: np.ndarray, num_draws: np.ndarray, table_entries: int,
              num_pairs: int) -> bool:
    """Return whether thinning takes less time than a trial for each pair."""
    is_bounded = (bound <= _HIGHEST_BOUND).all()
    return is_bounded and is_less_work(num_draws.sum(), table_entries, num_pairs)


def is_less_work(num_draws: float, table_entries: int, num_pairs: int) -> bool:
    # table_entries: keys times clusters; without draws: whether thinning can be faster at all
    return num_draws + TABLE_ENTRY * table_entries < _FASTER_BELOW * num_pairs


def _rate_multiplier(bound: np.ndarray) -> np.ndarray:
    # -log(1 - bound) / bound, or infinite if the bound is not below 1
    is_certain = ~(bound < 1)  # NaN too
    low = np.where(is_certain, 0.5, np.maximum(bound, np.finfo(float).tiny))
    return np.where(is_certain, np.inf, -np.log1p(-low) / low)


@jit()
def _thin_rows(first, last, seed, keys, begin, size, first_key, rate_multiplier, query, key_factor):
    # a key drawn at the rate rate_multiplier * p is kept with probability p / (1 -
    # exp(-rate_multiplier * p)); keys and sizes change in place
    for i in range(first, last):
        stream, end = stream_of(seed, i), begin[i]
        for e in range(size[i]):
            key, coin = keys[begin[i] + e], uniform(random_bits(stream, e))
            if coin * rate_multiplier[i] >= 1:
                p = product_of_rows(query, i, key_factor, first_key[i] + key)
                if coin * -math.expm1(-rate_multiplier[i] * p) >= p:
                    continue
            keys[end] = key
            end += 1
        size[i] = end - begin[i]
