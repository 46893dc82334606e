"""Draws of keys for each query in Triton, for NVIDIA's GPUs, in time linear in the number of draws.

A task is a query, or a query with a piece of the keys of its segment. Its draws stay in the
registers of one program, which sorts them and drops duplicates.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from graphattn._tensors import index_dtype
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.methods import MAX_DRAWS, bound_is_too_high, check_rate
from graphattn.ops.sample.trials import share_bits
from graphattn.ops.triton.launch import TYPES, fp64, launch

__all__ = ['MAX_EXPECTED', 'Draws', 'draw', 'thin']

MAX_EXPECTED = 64  # expected draws of a task; one warp has registers for twice this number
_MAX_TASKS = 2**22  # limit of tasks if they are more than the draws: most would draw nothing
# Sizes that a program computes: draws, rows of rate_rows, clusters at a time of _thin, keys and
# clusters of measure_keys, and keys at a time of sum_keys.
_DRAWS_OF_A_PROGRAM, _ROWS, _CLUSTERS, _KEYS, _KEYS_OF_A_SUM = 128, 4, 8, 16, 64
# Number of draws per pair above which trials of all pairs are faster; and the time of a call and of
# an entry of cumulative shares, in draws. The first two are measured on an H100 with 128 clusters.
_FASTER_BELOW, _CALL, _TABLE_ENTRY = 0.07, 6e6, 1 / 8
_HIGHEST_BOUND = 0.9  # has a rate multiplier of 2.6; a bound of 1 would have infinity


def draw(model: FactorModel, generator: torch.Generator | None, *,
         by_name: bool) -> BipartiteGraph | None:  # by_name: the caller named the method, so raise
    """Return the graph of the distinct keys that queries draw, or None if registers are too few."""
    draws = Draws(model, generator)
    check_rate(draws.expected, model)
    return draws.to_graph(by_name)


def thin(model: FactorModel, generator: torch.Generator | None, *,
         by_name: bool) -> BipartiteGraph | None:
    """Return a graph drawn by thinning, or None if trials are faster or registers are too few."""
    max_pairs = model.num_queries * model.num_keys // model.num_heads
    if not by_name and not _is_faster(0, model.key_factor.numel(), max_pairs):
        return None  # without synchronising the GPU
    draws = Draws(model, generator, thins=True)
    bound = draws.highest_bound
    if by_name and not bound < 1:
        raise bound_is_too_high(bound, int(draws.bound.argmax()))
    if not by_name and not (bound <= _HIGHEST_BOUND and _is_faster(
            draws.expected, draws.key_factor.numel(), draws.num_pairs)):
        return None
    return draws.to_graph(by_name)


class Draws:
    """Random keys that the queries of a model draw; the constructor synchronises the GPU."""

    def __init__(self, model: FactorModel, generator: torch.Generator | None, *,
                 thins: bool = False):
        self.model, self._generator = model, generator
        self.query, self.key_factor = (_with_aligned_rows(x.detach().to(model.dtype))
                                       for x in (model.mixed_query(), model.key_factor))
        # of the probabilities of each query, for thinning
        self.bound = self.query.new_empty(model.num_queries, dtype=torch.double) if thins else None
        self._count(pieces=1)

    def _count(self, pieces: int) -> None:
        # each piece of the keys of a segment gets its own number of draws
        model, (num_queries, clusters) = self.model, self.query.shape
        self.pieces, num_pieces = pieces, pieces * model.num_segments
        self.mass = self.query.new_empty(num_pieces, clusters, dtype=torch.double)
        is_bounded = pieces > 1 or self.bound is None  # already, or not at all
        peak = None if is_bounded else torch.empty_like(self.mass)
        launch(sum_keys, (num_pieces, triton.cdiv(clusters, _KEYS)), self.key_factor,
                model.key_ptr, self.mass, peak, pieces, CLUSTERS=clusters, KEYS=_KEYS_OF_A_SUM,
                WIDTH=_KEYS)
        programs = triton.cdiv(num_queries, _ROWS) * pieces
        rate = self.mass.new_zeros(num_queries * pieces + 1)
        sums, peaks = partial = self.mass.new_zeros(2, 2, programs + 1)
        launch(rate_rows, (programs,), self.query, *model.segments.ptrs, self.mass, peak,
                self.bound, model.exploration, rate, partial, num_queries, pieces,
                model.num_segments, programs, MOST=MAX_DRAWS, CLUSTERS=clusters,
                WIDTH=triton.next_power_of_2(clusters), ROWS=_ROWS, SEGMENTS=self._segments)
        drawn = torch.poisson(rate, self._generator)
        num_draws = drawn.long()
        self.begin = num_draws.cumsum(0) - num_draws
        (self.expected, self.num_pairs, self.max_expected, self.highest_bound, self.most,
         self.total) = torch.cat([sums.sum(1), peaks.amax(1), drawn.amax(0, keepdim=True),
                                  self.begin[-1:]]).tolist()

    @property
    def _segments(self) -> int:
        return triton.next_power_of_2(self.model.num_segments)

    def to_graph(self, by_name: bool) -> BipartiteGraph | None:
        if self._fit():
            return self._to_graph()
        if by_name:
            raise ValueError("'method' must not be named for this model, because a query draws the "
                             "same few keys so often that its draws do not fit in the registers of "
                             "the GPU; pass method='auto'")
        return None

    def _fit(self) -> bool:
        while self.max_expected > MAX_EXPECTED:
            pieces = self.pieces * math.ceil(self.max_expected / MAX_EXPECTED)
            pieces = min(pieces, self.model.num_keys)
            num_tasks = pieces * self.model.num_queries
            if pieces == self.pieces or num_tasks > max(_MAX_TASKS, self.expected):
                return False
            self._count(pieces)
        return True

    def _to_graph(self) -> BipartiteGraph:
        model, num_tasks, clusters = self.model, self.begin.numel() - 1, self.query.size(1)
        drawn = torch.empty(int(self.total), dtype=index_dtype(model.num_keys), device=model.device)
        size = torch.zeros_like(self.begin)
        seed = self.begin.new_empty(()).random_(-2**63, None, generator=self._generator)
        most = max(triton.next_power_of_2(int(self.most)), 32)
        tasks = max(_DRAWS_OF_A_PROGRAM // most, 1)
        grid = triton.cdiv(num_tasks, tasks),
        launch(draw_keys, grid, self.query, self.key_factor, *model.segments.ptrs, self.mass,
                self._cdf(), self.begin, seed, self.bound, model.exploration, drawn, size,
                num_tasks, self.pieces, model.num_segments, model.num_keys, CLUSTERS=clusters,
                WIDTH=triton.next_power_of_2(clusters), DTYPE=TYPES[self.query.dtype],
                TASKS=tasks, DRAWS=most, DEPTH=_CLUSTERS, SEGMENTS=self._segments)
        end = size.cumsum(0) - size
        key = torch.empty(int(end[-1]), dtype=drawn.dtype, device=model.device)
        launch(close_gaps, grid, drawn, self.begin, end, key, num_tasks, TASKS=tasks, DRAWS=most)
        return BipartiteGraph.from_csr(end[::self.pieces].contiguous(), key, model.num_keys,
                                       query_ptr=model.query_ptr, key_ptr=model.key_ptr,
                                       validate=False)

    def _cdf(self) -> Tensor:
        # int64 [k * num_keys + 1], shares relative to the sum over a piece of the keys
        num_keys, clusters = self.key_factor.shape
        cdf = self.begin.new_empty(clusters * num_keys + 1)
        grid = triton.cdiv(num_keys, _KEYS), triton.cdiv(clusters, _KEYS)
        launch(measure_keys, grid, self.key_factor, self.model.key_ptr, self.mass, cdf,
                2.**share_bits(self.mass.numel()), num_keys, self.pieces, self.model.num_segments,
                CLUSTERS=clusters, KEYS=_KEYS, SEGMENTS=self._segments)
        return cdf.cumsum_(0)


def _is_faster(num_draws: float, table_entries: int, num_pairs: float) -> bool:
    return num_draws + _CALL + _TABLE_ENTRY * table_entries < _FASTER_BELOW * num_pairs


def _with_aligned_rows(factor: Tensor) -> Tensor:
    # Rows are multiples of 16 bytes, which a thread loads at once.
    missing = -factor.size(1) % 4
    return (F.pad(factor, (0, missing)) if missing else factor).contiguous()


# Kernels #############################################################################

kernel = triton.jit(do_not_specialize=['num_rows', 'num_tasks', 'num_pieces', 'num_segments',
                                       'num_programs', 'num_keys'])


@kernel
def sum_keys(key_factor, key_ptr, mass, peak, num_pieces, CLUSTERS: tl.constexpr,
             KEYS: tl.constexpr, WIDTH: tl.constexpr):
    """Kernel: write the sum and the largest of the memberships of a piece of the keys of a
    segment."""
    # in WIDTH of the clusters; without a ``peak``, only the sum
    number = tl.program_id(0).to(tl.int64)
    begin, length = _piece(key_ptr, number // num_pieces, number % num_pieces, num_pieces)
    cluster = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float64)
    highest = total
    for first in range(0, length, KEYS):
        key = first + tl.arange(0, KEYS)
        factor = tl.load(key_factor + (begin + key)[:, None] * CLUSTERS + cluster[None, :],
                         mask=(key < length)[:, None] & (cluster < CLUSTERS)[None, :],
                         other=0).to(tl.float64)
        total += tl.sum(factor, axis=0)
        highest = tl.maximum(highest, tl.max(_largest_if_nan(factor), axis=0))
    at = number * CLUSTERS + cluster
    tl.store(mass + at, total, mask=cluster < CLUSTERS)
    if peak is not None:
        tl.store(peak + at, highest, mask=cluster < CLUSTERS)


@kernel
def rate_rows(query, query_ptr, key_ptr, mass, peak, bound, exploration: fp64, rate, partial,
              num_rows, num_pieces, num_segments, num_programs, MOST: tl.constexpr,
              CLUSTERS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
              SEGMENTS: tl.constexpr):
    """Kernel: write the mean number of draws of some queries from a piece of the keys of their
    segment."""
    # With ``peak``, writes also bounds of their probabilities, which raise the rates. partial: the
    # sums of rates and pairs, and the largest rate and bound, of each program
    program = tl.program_id(0)
    number = program % num_pieces
    row = (program // num_pieces).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    segment = _segment_of(query_ptr, row, num_segments, SEGMENTS)
    _, length = _piece(key_ptr, segment, number, num_pieces)
    explore = tl.full((), exploration, tl.float64)
    weight = _weights(query, mass, row, segment * num_pieces + number, is_row, CLUSTERS, WIDTH)
    rate_i = tl.sum(weight, axis=1) + explore * length
    bound_i = tl.zeros([ROWS], tl.float64)
    if bound is not None:
        if peak is not None:
            weight = _weights(query, peak, row, segment, is_row, CLUSTERS, WIDTH)
            bound_i = _largest_if_nan(tl.sum(weight, axis=1) + explore)
            tl.store(bound + row, bound_i, mask=is_row)
        else:
            bound_i = tl.load(bound + row, mask=is_row, other=0)
        rate_i *= _rate_multiplier(bound_i)
    rate_i = tl.where(is_row, rate_i, 0)
    drawable = tl.where(rate_i < float('inf'), rate_i, 0)  # only rates that are invalid change
    tl.store(rate + row * num_pieces + number, tl.minimum(tl.maximum(drawable, 0), MOST),
             mask=is_row)
    columns = num_programs + 1
    tl.store(partial + program, tl.sum(rate_i, axis=0))
    tl.store(partial + columns + program, tl.sum(tl.where(is_row, length, 0), axis=0))
    tl.store(partial + 2 * columns + program, tl.max(_largest_if_nan(rate_i), axis=0))
    tl.store(partial + 3 * columns + program, tl.max(tl.where(is_row, bound_i, 0), axis=0))


@triton.jit
def _segment_of(ptr, node, num_segments, SEGMENTS: tl.constexpr):
    # the last segment that begins at or before each node; SEGMENTS: the next power of two
    segment = tl.zeros(node.shape, tl.int32)
    step = SEGMENTS // 2
    while step > 0:
        further = segment + step
        begin = tl.load(ptr + further, mask=further < num_segments, other=0)
        segment = tl.where((further < num_segments) & (begin <= node), further, segment)
        step //= 2
    return segment


@triton.jit
def _piece(ptr, segment, number, num_pieces):
    first = tl.load(ptr + segment)
    length = tl.load(ptr + segment + 1) - first
    begin = length * number // num_pieces
    return first + begin, length * (number + 1) // num_pieces - begin


@triton.jit
def _rate_multiplier(bound):
    # -log(1 - bound) / bound, accurate near 0 too, or infinite if the bound is not below 1
    rest = 1 - bound
    is_open = (rest > 0) & (rest < 1)
    multiplier = tl.log(tl.where(is_open, rest, 0.5)) / tl.where(is_open, rest - 1, -0.5)
    return tl.where(is_open, multiplier, tl.where(rest > 0, 1., float('inf')))


@triton.jit
def _largest_if_nan(x):
    return tl.where(x == x, x, float('inf'))


@triton.jit
def _weights(query, table, row, piece, is_row, CLUSTERS: tl.constexpr, WIDTH: tl.constexpr):
    cluster = tl.arange(0, WIDTH)[None, :]
    inside = is_row[:, None] & (cluster < CLUSTERS)
    offered = tl.load(query + row[:, None] * CLUSTERS + cluster, mask=inside, other=0)
    mass = tl.load(table + piece[:, None] * CLUSTERS + cluster, mask=inside, other=0)
    return offered.to(tl.float64) * mass


@kernel
def measure_keys(key_factor, key_ptr, mass, cdf, scale: fp64, num_keys, num_pieces, num_segments,
                 CLUSTERS: tl.constexpr, KEYS: tl.constexpr, SEGMENTS: tl.constexpr):
    """Kernel: write 0 to ``cdf``, and then integer shares of keys, ``[CLUSTERS, num_keys]``."""
    # the part of the sum over the key's piece, times ``scale`` and rounded; mass: [pieces of all
    # segments, CLUSTERS]
    key = tl.program_id(0).to(tl.int64) * KEYS + tl.arange(0, KEYS)
    cluster = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    inside = (key < num_keys)[:, None] & (cluster < CLUSTERS)[None, :]
    segment = _segment_of(key_ptr, key, num_segments, SEGMENTS)
    first, length = _piece(key_ptr, segment, 0, 1)
    # of all pieces that begin at or before the key, the last
    piece = ((key - first + 1) * num_pieces - 1) // tl.maximum(length, 1) + segment * num_pieces
    factor = tl.load(key_factor + key[:, None] * CLUSTERS + cluster[None, :], mask=inside, other=0)
    total = tl.load(mass + piece[:, None] * CLUSTERS + cluster[None, :], mask=inside, other=1)
    share = factor.to(tl.float64) / tl.where(total > 0, total, 1) * scale
    at = cluster.to(tl.int64)[:, None] * num_keys + key[None, :] + 1
    tl.store(cdf + at, tl.trans((share + 0.5).to(tl.int64)), mask=tl.trans(inside))
    tl.store(cdf, 0, mask=(tl.program_id(0) == 0) & (tl.program_id(1) == 0))


@kernel
def draw_keys(
        query, key_factor, query_ptr, key_ptr, mass, cdf, begin, seed, bound, exploration: fp64,
        drawn, size, num_tasks, num_pieces, num_segments, num_keys, CLUSTERS: tl.constexpr,
        WIDTH: tl.constexpr, DTYPE: tl.constexpr, TASKS: tl.constexpr, DRAWS: tl.constexpr,
        DEPTH: tl.constexpr, SEGMENTS: tl.constexpr):
    """Kernel: write the distinct keys of some tasks to ``drawn``, ascending, and their numbers."""
    # With a ``bound``, only keys that thinning keeps. cdf: of Draws._cdf; begin: where the draws of
    # each task begin; DRAWS: most of a task; DEPTH: clusters that thinning loads at once
    task = tl.program_id(0).to(tl.int64) * TASKS + tl.arange(0, TASKS)
    is_task = task < num_tasks
    first = tl.load(begin + task, mask=is_task, other=0)
    num_draws = tl.load(begin + task + 1, mask=is_task, other=0) - first
    row = task // num_pieces
    number = task % num_pieces
    segment = _segment_of(query_ptr, row, num_segments, SEGMENTS)
    first_key, length = _piece(key_ptr, segment, number, num_pieces)
    length = length.to(tl.int32)

    draw = tl.arange(0, DRAWS)[None, :] + tl.zeros([TASKS, 1], tl.int32)
    inside = draw < num_draws[:, None]
    explore = tl.full((), exploration, tl.float64)
    cluster_bits, high_bits, low_bits, coin_bits = _random_bits(seed, task, draw)
    weight = _weights(query, mass, row, segment * num_pieces + number, is_task, CLUSTERS, WIDTH)
    cluster, explores = _draw_clusters(weight, explore * length, cluster_bits, WIDTH)
    key_bits = (high_bits.to(tl.uint64) << 32) | low_bits
    key = _draw_keys(cdf + cluster.to(tl.int64) * num_keys + first_key[:, None], length[:, None],
                     key_bits, explores, inside)

    beyond = 2147483647
    key = tl.sort(tl.where(inside, key, beyond), dim=1)
    before = tl.gather(key, tl.maximum(draw - 1, 0), axis=1)
    kept = (key < beyond) & ((draw == 0) | (key != before))
    node = first_key[:, None] + key
    if bound is not None:
        multiplier = _rate_multiplier(tl.load(bound + row, mask=is_task, other=0))
        kept = _thin(kept, query, key_factor, explore, row, node, multiplier, coin_bits, CLUSTERS,
                     DTYPE, TASKS, DRAWS, DEPTH)
    place = first[:, None] + tl.cumsum(kept.to(tl.int32), axis=1) - 1
    tl.store(drawn + place, node.to(drawn.dtype.element_ty), mask=kept)
    tl.store(size + task, tl.sum(kept.to(tl.int64), axis=1), mask=is_task)


@triton.jit
def _random_bits(seed, task, draw):
    # Philox (Salmon et al., 2011)
    zero = draw.to(tl.uint32) * 0
    low, high = zero + task.to(tl.uint32)[:, None], zero + (task >> 32).to(tl.uint32)[:, None]
    return tl.philox(tl.load(seed), low, high, draw.to(tl.uint32), zero)


@triton.jit
def _draw_clusters(weight, explored, bits, WIDTH: tl.constexpr):
    # also whether a key is drawn from all keys with equal probability instead
    total = tl.sum(weight, axis=1) + explored
    scale = 1073741824. / tl.where(total > 0, total, 1)  # 2**30
    end = tl.cumsum((weight * scale[:, None] + 0.5).to(tl.int32), axis=1)
    end_of_all = tl.max(end, axis=1)
    every = end_of_all + (explored * scale + 0.5).to(tl.int32)
    target = tl.umulhi(bits, every.to(tl.uint32)[:, None]).to(tl.int32)
    cluster = tl.zeros(bits.shape, tl.int32)
    step = WIDTH // 2
    while step > 0:
        cluster += tl.where(tl.gather(end, cluster + (step - 1), axis=1) <= target, step, 0)
        step //= 2
    return cluster, target >= end_of_all[:, None]


@triton.jit
def _draw_keys(begin, length, bits, explores, inside):
    # begin: pointers to the share of the first key of the piece in each draw's cluster; keys are
    # counted from it
    chooses = inside & ~explores
    low = tl.load(begin, mask=chooses, other=0)
    width = tl.load(begin + length, mask=chooses, other=0) - low
    target = low + tl.umulhi(bits, width.to(tl.uint64)).to(tl.int64)
    key = tl.zeros(bits.shape, tl.int32)
    step = 1
    while 2 * step <= tl.max(length):
        step *= 2
    while step > 0:
        further = key + step
        end = tl.load(begin + further, mask=chooses & (further < length), other=0)
        key = tl.where((further < length) & (end <= target), further, key)
        step //= 2
    any_key = tl.umulhi(bits, length.to(tl.uint64) + tl.zeros(bits.shape, tl.uint64)).to(tl.int32)
    return tl.where(explores, any_key, key)


@triton.jit
def _thin(kept, query, key_factor, explore, row, node, multiplier, bits, CLUSTERS: tl.constexpr,
          DTYPE: tl.constexpr, TASKS: tl.constexpr, DRAWS: tl.constexpr, DEPTH: tl.constexpr):
    # A pair drawn at the rate multiplier * p is kept with probability p / (1 - exp(-multiplier *
    # p)). A coin below 1 / multiplier always keeps it, so p is computed only for others.
    coin = bits.to(tl.float64) * 2.3283064365386963e-10  # 2**-32
    multiplier = multiplier[:, None]
    is_open = kept & (coin * multiplier >= 1)
    if tl.max(is_open.to(tl.int32)) > 0:
        product = tl.zeros([TASKS, DRAWS], DTYPE)
        for first in range(0, CLUSTERS, DEPTH):
            cluster = first + tl.arange(0, DEPTH)
            inside = is_open[:, :, None] & (cluster < CLUSTERS)[None, None, :]
            query_i = tl.load(query + row[:, None] * CLUSTERS + cluster[None, :],
                              mask=(tl.max(is_open.to(tl.int32), axis=1) > 0)[:, None]
                              & (cluster < CLUSTERS)[None, :], other=0)
            key_j = tl.load(key_factor + node[:, :, None] * CLUSTERS + cluster[None, None, :],
                            mask=inside, other=0)
            product += tl.sum(query_i[:, None, :] * key_j, axis=2)
        prob = product.to(tl.float64) + explore
        kept = kept & ((coin * multiplier < 1) | (coin * (1 - tl.exp(-multiplier * prob)) < prob))
    return kept


@kernel
def close_gaps(drawn, begin, end, key, num_tasks, TASKS: tl.constexpr, DRAWS: tl.constexpr):
    """Kernel: copy ``drawn[begin[task]:]`` to ``key[end[task]:]``, for some tasks."""
    task = tl.program_id(0).to(tl.int64) * TASKS + tl.arange(0, TASKS)
    is_task = task < num_tasks
    first = tl.load(begin + task, mask=is_task, other=0)
    place = tl.load(end + task, mask=is_task, other=0)
    size = tl.load(end + task + 1, mask=is_task, other=0) - place
    number = tl.arange(0, DRAWS)[None, :]
    inside = number < size[:, None]
    kept = tl.load(drawn + first[:, None] + number, mask=inside, other=0)
    tl.store(key + place[:, None] + number, kept, mask=inside)
