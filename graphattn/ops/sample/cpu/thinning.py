"""Thinning: pairs are drawn at higher rates, and some dropped so that the distribution is exact."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch

from graphattn._jit import jit
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.cpu.random_bits import draw_seed, random_bits, stream_of, uniform
from graphattn.ops.sample.cpu.rates import Rates, pair_arrays, product_of_rows, sum_of_products
from graphattn.ops.sample.cpu.rows import TABLE_ENTRY, Rows, from_zero, in_threads
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.methods import bound_is_too_high

__all__ = ['Thinning', 'faster_thinning', 'is_faster', 'may_be_faster']

# Draws per pair above which the product over all pairs takes less time than thinning. On one
# core, with 16, 32 and 128 clusters, they took 21, 27 and 46 ms and 7, 8 and 12 ms at 1 % of
# 4,096 x 4,096 pairs, 28, 36 and 58 ms and 39, 35 and 45 ms at 10 %, 32, 40 and 53 ms and 64, 59
# and 79 ms at 15 %.
_FASTER_BELOW = 0.1
_HIGHEST_BOUND = 0.9  # has a rate multiplier of 2.6; a bound of 1 would have infinity


class Thinning:
    r"""Draws at higher rates than :math:`p_{ij} + \delta`, then drops the excess.

    A pair drawn at rate :math:`c_i p` is seen, once or more, with probability
    :math:`1 - e^{-c_i p}`, independently of the others. This is at least p if the multiplier
    :math:`c_i \ge -\log(1 - p) / p`. That grows with p, so its value at an upper bound of the row's
    probabilities serves the whole row. A pair that was seen is kept with probability :math:`p / (1
    - e^{-c_i p}) \le 1`, by a coin of its own, so it is an edge with probability p. The probability
    of keeping is at least :math:`1 / c_i`, nearly 1 for small bounds, so few coins need p.
    """

    def __init__(self, model: FactorModel):
        self.model, self.rates = model, Rates(model)
        self.bound = self.rates.bounds()
        self.rate_multiplier = _rate_multiplier(self.bound)

    @cached_property
    def num_draws(self) -> np.ndarray:
        """Return the expected draws of each query, float64 ``[num_queries]``."""
        return self.rate_multiplier * self.rates.of_queries()

    def is_faster(self) -> bool:
        """Return whether thinning takes less time than comparing all pairs."""
        return is_faster(self.bound, self.num_draws, *_sizes(self.model))

    def sample(self, generator: torch.Generator | None) -> BipartiteGraph:
        """Draw each pair with its probability.

        Raises:
            ValueError: The bound of a row is not below 1.
        """
        if np.isinf(self.rate_multiplier).any():
            query = int(np.isinf(self.rate_multiplier).argmax())
            raise bound_is_too_high(self.bound[query], query)
        num_draws = torch.poisson(torch.from_numpy(self.num_draws), generator).long()
        return self.thinned(num_draws.numpy(), draw_seed(generator), draw_seed(generator))

    def thinned(self, num_draws: np.ndarray, seed: np.uint64,
                coin_seed: np.uint64) -> BipartiteGraph:
        """Thin ``num_draws[i]`` draws of each query."""
        rows = self.rates.draw(num_draws, seed)
        self._thin(rows, coin_seed)
        return rows.to_graph(self.model)

    def _thin(self, rows: Rows, seed: np.uint64) -> None:
        rates = self.rates
        first_key = rates.key_ptr[rates.query_segment]
        in_threads(_thin_rows, from_zero(rows.size), seed, *rows, first_key, self.rate_multiplier,
                   rates.query, rates.key_factor)


def faster_thinning(model: FactorModel) -> Thinning | None:
    """Return the thinning of the model if it takes less time than comparing all pairs, else
    None."""
    sizes = _sizes(model)
    if not may_be_faster(*sizes) or not _is_less_work(_expected_edges(model), *sizes):
        return None
    thinning = Thinning(model)
    return thinning if thinning.is_faster() else None


def _expected_edges(model: FactorModel) -> float:
    """Return the expected number of edges, a lower bound of the number of draws."""
    return sum_of_products(*pair_arrays(model)) + model.exploration * model.segments.num_pairs


def _sizes(model: FactorModel) -> tuple[int, int]:
    return model.num_keys * model.num_clusters, model.segments.num_pairs


def may_be_faster(table_entries: int, num_pairs: int) -> bool:
    """Return whether :func:`is_faster` could be true, before rates are computed."""
    return _is_less_work(0, table_entries, num_pairs)


def is_faster(bound: np.ndarray, num_draws: np.ndarray, table_entries: int,
              num_pairs: int) -> bool:
    """Return whether thinning takes less time than comparing all pairs.

    Args:
        bound (numpy.ndarray): Upper bound of the probabilities of each query.
        num_draws (numpy.ndarray): Expected draws of each query.
        table_entries (int): Keys times clusters.
        num_pairs (int): Pairs inside the segments.
    """
    is_bounded = (bound <= _HIGHEST_BOUND).all()
    return is_bounded and _is_less_work(num_draws.sum(), table_entries, num_pairs)


def _is_less_work(num_draws: float, table_entries: int, num_pairs: int) -> bool:
    """Return whether draws and their tables take less time than comparing all pairs."""
    return num_draws + TABLE_ENTRY * table_entries < _FASTER_BELOW * num_pairs


def _rate_multiplier(bound: np.ndarray) -> np.ndarray:
    """Return the rate multiplier of each row: the rate of a draw over the probability of the
    pair."""
    is_certain = ~(bound < 1)  # NaN too
    low = np.where(is_certain, 0.5, np.maximum(bound, np.finfo(float).tiny))
    return np.where(is_certain, np.inf, -np.log1p(-low) / low)


@jit()
def _thin_rows(first, last, seed, keys, begin, size, first_key, rate_multiplier, query, key_factor):
    """Keep a key of rate p, drawn at rate ``rate_multiplier[i] * p``, with probability ``p / (1 -
    exp(-rate_multiplier[i] * p))``."""
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
