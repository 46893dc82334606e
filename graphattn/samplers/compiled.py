"""The samplers' inner loops, compiled by numba, for CPUs.

Every row has a random stream of its own, SplitMix64 (Steele et al., 2014) begun at a hash of the
seed and the row, so that the graph does not depend on how rows are dealt to threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn._threads import run_calls
from graphattn.graph import BipartiteGraph
from graphattn.samplers.factor_model import FactorModel, _block_of
from graphattn.samplers.fastrg import _with_exploration

try:
    from llvmlite import ir
    from numba import njit, types, uint8, uint32, uint64
    from numba.extending import intrinsic
except ImportError as error:
    raise ImportError("compiled samplers need numba: pip install numba") from error

_OPTIONS = {'cache': True, 'nogil': True, 'error_model': 'numpy'}
_jit, _jit_inline = njit(**_OPTIONS), njit(**_OPTIONS, forceinline=True)
# Sums may be reordered, which is what lets them run in vector registers.
_jit_sum = njit(**_OPTIONS, fastmath={'reassoc', 'contract', 'nsz'})


class Rows(NamedTuple):
    """Keys of all rows, with gaps between rows: their numbers inside the block, ascending."""

    keys: np.ndarray  # uint32
    begin: np.ndarray  # int64 [num_queries], where each row begins in ``keys``
    size: np.ndarray  # int64 [num_queries]

    def to_graph(self, model: FactorModel) -> BipartiteGraph:
        indptr = _from_zero(self.size)
        # numpy asks for huge pages, torch does not.
        key = np.empty(indptr[-1], np.uint16 if model.num_keys <= 2**16 else np.int32)
        first_key = model.key_ptr[_block_of(model.query_ptr)].numpy()
        _in_threads(_copy_rows, indptr, *self, first_key, indptr, key)
        return BipartiteGraph.from_csr(torch.from_numpy(indptr), torch.from_numpy(key),
                                       model.num_keys, query_ptr=model.query_ptr,
                                       key_ptr=model.key_ptr, validate=False)


class Rates:
    """The rates of all pairs as the kernels read them, exploration being one more cluster."""

    def __init__(self, model: FactorModel):
        query, key_factor = _with_exploration(model)
        self.query, self.key_factor = query.numpy(), key_factor.detach().contiguous().numpy()
        self.columns = key_factor.t().contiguous().numpy()
        self.key_ptr = model.key_ptr.numpy()
        self.query_block = _block_of(model.query_ptr).numpy()
        self.mass, self.peak = np.zeros((2, model.num_blocks, len(self.columns)))
        self._for_each_column(_reduce_column, self.mass, self.peak)

    def of_queries(self) -> np.ndarray:
        """The sum over the keys of each query's block, float64 ``[num_queries]``."""
        return self._per_query(self.mass)

    def bounds(self) -> np.ndarray:
        """What no key of a query's block exceeds, float64 ``[num_queries]``."""
        return self._per_query(self.peak)

    def draw(self, num_draws: np.ndarray, seed: np.uint64) -> Rows:
        """The distinct keys among ``num_draws[i]`` independent draws of each query.

        Each draw is of a cluster v by ``query[i, v] * mass[block, v]``, then of a key by
        ``columns[v]``.
        """
        tables = np.empty(self.columns.shape, np.uint64)
        self._for_each_column(_fill_table, self.mass, tables)
        capacity = np.minimum(num_draws, np.diff(self.key_ptr)[self.query_block])
        begin = _from_zero(capacity)[:-1]
        rows = Rows(np.empty(capacity.sum(), np.uint32), begin, np.empty_like(begin))
        _in_threads(_draw_rows, _from_zero(num_draws), seed, num_draws, self.query, self.mass,
                    self.query_block, self.key_ptr, tables, *rows)
        return rows

    def thin(self, rows: Rows, boost: np.ndarray, seed: np.uint64) -> None:
        """Keeps a pair of rate p, drawn at rate ``boost[i] * p``, with probability
        ``p / (1 - exp(-boost[i] * p))``."""
        first_key = self.key_ptr[self.query_block]
        _in_threads(_thin_rows, _from_zero(rows.size), seed, *rows, first_key, boost, self.query,
                    self.key_factor)

    def _for_each_column(self, kernel: Callable, *arguments) -> None:
        """``kernel`` for each column of each block."""
        num_columns = self.mass.size
        work = np.arange(num_columns + 1) * (self.columns.size // max(num_columns, 1))
        _in_threads(kernel, work, self.columns, self.key_ptr, *arguments)

    def _per_query(self, per_cluster: np.ndarray) -> np.ndarray:
        total = np.empty(len(self.query))
        work = np.arange(len(self.query) + 1) * self.query.shape[1]
        _in_threads(_dot_rows, work, self.query, per_cluster, self.query_block, total)
        return total


def draw_seed(generator: torch.Generator | None) -> np.uint64:
    """A seed for all rows from torch's stream of random numbers."""
    seed = torch.empty((), dtype=torch.long).random_(-2**63, None, generator=generator)
    return np.uint64(seed.item() % 2**64)


def compare(chunks: Iterable[tuple[Tensor, Tensor]], model: FactorModel, expected_edges: float,
            seed: np.uint64) -> Rows:
    """A trial for each entry of each chunk: queries ``[rows]``, :math:`p_{ij}` ``[rows, keys]``.

    ``expected_edges`` decides how much memory is taken at once.
    """
    most_edges = min(_MOST_KEYS, expected_edges + 6 * math.sqrt(expected_edges))
    rows = Rows(np.empty(int(most_edges), np.uint32), *np.zeros((2, model.num_queries), np.int64))
    end, scratch = 0, np.empty(0, np.uint32)
    for query, prob in chunks:
        query, prob = query.numpy(), prob.numpy()
        num_rows, num_keys = prob.shape
        size, exploration = np.empty(num_rows, np.int64), prob.dtype.type(model.exploration)
        if scratch.size < prob.size:
            scratch = np.empty(prob.size, np.uint32)
        bounds = _in_threads(_compare_rows, np.arange(num_rows + 1) * num_keys, seed,
                             query, prob, exploration, scratch, size)
        begin = end + _from_zero(size)
        if begin[-1] > rows.keys.size:
            rows = rows._replace(keys=np.resize(rows.keys, 2 * begin[-1]))
        for first, last in zip(bounds, bounds[1:]):
            part = rows.keys[begin[first]:begin[last]]
            part[:] = scratch[first * num_keys:][:part.size]
        rows.begin[query], rows.size[query], end = begin[:-1], size, begin[-1]
    return rows


def _in_threads(kernel: Callable, work: np.ndarray, *arguments) -> np.ndarray:
    """``kernel(first, last, *arguments)`` on ranges of equal shares of cumulative ``work``."""
    num_parts = min(torch.get_num_threads(), 1 + int(work[-1]) // _GRAIN)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, num_parts) // num_parts)
    bounds = np.unique([0, *cuts, len(work) - 1])
    if len(bounds) > 1:
        run_calls([(kernel, first, last, *arguments) for first, last in zip(bounds, bounds[1:])])
    return bounds


def _from_zero(size: np.ndarray) -> np.ndarray:
    """Where each of consecutive pieces begins and, last, where they end."""
    return np.concatenate([[0], np.cumsum(size)])


_MOST_KEYS = 2**24  # taken before it is known whether they are needed
_GRAIN = 1 << 12  # draws, or table entries, that are worth a thread


# Kernels #############################################################################


@intrinsic
def _lowest_bit(typingctx, word):
    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
    return types.uint64(types.uint64), codegen


_SLOT = 2**32


@_jit_inline
def _hash(bits):
    bits = (bits ^ (bits >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> uint64(27))) * uint64(0x94D049BB133111EB)
    return bits ^ (bits >> uint64(31))


@_jit_inline
def _random(stream, counter):
    """64 random bits."""
    return _hash(stream + (uint64(counter) + uint64(1)) * uint64(0x9E3779B97F4A7C15))


@_jit_inline
def _stream(seed, row):
    return _hash(seed + uint64(row) * uint64(0xD1342543DE82EF95))


@_jit_inline
def _uniform(bits):
    return np.float64(bits >> uint64(11)) * 2.**-53


@_jit_sum
def _dot_rows(first, last, query, per_cluster, query_block, total):
    for i in range(first, last):
        block = query_block[i]
        total[i] = 0.
        for v in range(query.shape[1]):
            total[i] += query[i, v] * per_cluster[block, v]


@_jit_sum
def _reduce_column(first, last, columns, key_ptr, mass, peak):
    num_blocks = len(key_ptr) - 1
    for item in range(first, last):
        column, block = item // num_blocks, item % num_blocks
        weight, total, largest = columns[column, key_ptr[block]:key_ptr[block + 1]], 0., 0.
        for j in range(len(weight)):
            total += weight[j]
            largest = max(largest, weight[j])
        mass[block, column], peak[block, column] = total, largest


@_jit
def _fill_table(first, last, columns, key_ptr, mass, tables):
    """Alias tables (Walker, 1977): each of n equal slots holds at most two keys.

    An entry is (threshold, alias), 32 bits each: the slot's own key below the threshold, else the
    alias. Shares are integers that add up to n slots exactly, so that no slot is left over for a
    key of share 0, and an alias is always a heavy key.
    """
    longest, num_blocks = _longest(key_ptr), len(key_ptr) - 1
    share = np.empty(longest, np.int64)
    lights, heavies = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.uint64)
    for item in range(first, last):
        column, block = item // num_blocks, item % num_blocks
        begin, end = key_ptr[block], key_ptr[block + 1]
        table, weight, n = tables[column, begin:end], columns[column, begin:end], end - begin
        if mass[block, column] <= 0:
            continue
        scale, total = n * 2.**32 / mass[block, column], 0
        for j in range(n):
            share[j] = np.int64(weight[j] * scale + 0.5)
            total += share[j]
        num_lights = num_heavies = uint64(0)
        for j in range(n):
            is_heavy = share[j] > _SLOT
            lights[num_lights] = heavies[num_heavies] = j
            num_lights += uint64(not is_heavy)
            num_heavies += uint64(is_heavy)
        light = heavy = uint64(0)
        if num_heavies > 0:
            rest = share[heavies[0]] + n * _SLOT - total
            lights[num_lights], heavies[num_heavies] = 0, heavies[num_heavies - uint64(1)]
            while heavy < num_heavies:
                # One key's slot is settled: a light one's, filled up by the heavy one, or the
                # heavy one's own, by its rest and the next heavy one.
                giver, next_light = heavies[heavy], lights[light]
                next_heavy = heavies[heavy + uint64(1)]
                light_share, heavy_share = share[next_light], share[next_heavy]
                fills = rest > _SLOT
                own, alias = (next_light if fills else giver), (giver if fills else next_heavy)
                threshold = light_share if fills else rest
                table[own] = uint64(min(threshold, _SLOT - 1)) << uint64(32) | alias
                rest += (light_share if fills else heavy_share) - _SLOT
                light += uint64(fills)
                heavy += uint64(not fills)
        while light < num_lights:
            table[lights[light]] = lights[light]
            light += uint64(1)


@_jit
def _longest(ptr):
    longest = 0
    for block in range(len(ptr) - 1):
        longest = max(longest, ptr[block + 1] - ptr[block])
    return longest


@_jit
def _draw_rows(first, last, seed, num_draws, query, cluster_mass, query_block, key_ptr, tables,
               keys, begin, size):
    num_clusters, num_keys = tables.shape
    half = 1
    while 2 * half < num_clusters:
        half *= 2
    cdf = np.full(2 * half, np.inf)
    num_words = _longest(key_ptr) // 64 + 1
    seen, seen_groups = np.zeros(num_words, np.uint64), np.zeros(num_words // 64 + 1, np.uint8)
    batch = 256
    target, cluster = np.empty(batch, np.float64), np.empty(batch, np.uint64)
    bits = np.empty(batch, np.uint64)
    table = tables.reshape(tables.size)
    for i in range(first, last):
        size[i] = 0
        if num_draws[i] == 0:
            continue
        block = query_block[i]
        first_key, n = key_ptr[block], key_ptr[block + 1] - key_ptr[block]
        total = 0.
        row, mass = query[i], cluster_mass[block]
        for v in range(num_clusters):
            total += row[v] * mass[v]
            cdf[v] = total
        stream = _stream(seed, i)
        for done in range(0, num_draws[i], batch):
            m = min(batch, num_draws[i] - done)
            for d in range(m):
                target[d] = _uniform(_random(stream, 2 * (done + d))) * total
                bits[d] = _random(stream, 2 * (done + d) + 1)
            _search(cdf, half, target[:m], cluster[:m])
            _look_up(table, cluster[:m], bits[:m], num_keys, first_key, n, seen, seen_groups)
        size[i] = _collect(seen, seen_groups, n, keys[begin[i]:])


@_jit
def _search(cdf, half, target, cell):
    """The first cell that ends above each target, all targets in step: no branch is guessed."""
    for d in range(len(target)):
        cell[d] = 0
    step = half
    while step > 0:
        for d in range(len(target)):
            is_beyond = cdf[cell[d] + uint64(step - 1)] <= target[d]
            cell[d] += uint64(step if is_beyond else 0)
        step //= 2


@_jit
def _look_up(table, cluster, bits, num_keys, first_key, n, seen, seen_groups):
    low, high = uint64(0xFFFFFFFF), uint64(32)
    for d in range(len(bits)):
        slot = (bits[d] >> high) * uint64(n) >> high
        entry = table[cluster[d] * uint64(num_keys) + uint64(first_key) + slot]
        j = slot if bits[d] & low < entry >> high else entry & low
        seen[j >> uint64(6)] |= uint64(1) << (j & uint64(63))
        seen_groups[j >> uint64(12)] = 1


@_jit
def _collect(seen, seen_groups, n, keys):
    """Writes the keys in ascending order, forgets them, and returns their number."""
    end = uint64(0)
    for group in range(n // 4096 + 1):
        if seen_groups[group]:
            seen_groups[group] = 0
            for w in range(64 * group, min(64 * group + 64, len(seen))):
                word = seen[w]
                seen[w] = 0
                while word:
                    keys[end] = uint32(uint64(64 * w) + _lowest_bit(word))
                    end += uint64(1)
                    word &= word - uint64(1)
    return end


@_jit
def _thin_rows(first, last, seed, keys, begin, size, first_key, boost, query, key_factor):
    batch = 256
    prob = np.empty(batch, query.dtype)
    for i in range(first, last):
        stream, end = _stream(seed, i), begin[i]
        for start in range(begin[i], begin[i] + size[i], batch):
            some = keys[start:min(start + batch, begin[i] + size[i])]
            _dots(query[i], key_factor[first_key[i]:], some, prob)
            for e in range(len(some)):
                p = prob[e]
                uniform = _uniform(_random(stream, start - begin[i] + e))
                if uniform * -math.expm1(-boost[i] * p) < p:
                    keys[end] = some[e]
                    end += 1
        size[i] = end - begin[i]


@_jit_sum
def _dots(x, y, rows, dot):
    for e in range(len(rows)):
        total = x.dtype.type(0)
        for v in range(len(x)):
            total += x[v] * y[rows[e], v]
        dot[e] = total


@_jit
def _compare_rows(first, last, seed, query, prob, exploration, keys, size):
    """31 bits decide each trial: a half of 64 each for the two halves of a row."""
    num_keys = prob.shape[1]
    half = num_keys // 2
    hit = np.zeros(num_keys + 8, np.uint8)
    words = hit[:(num_keys + 7) // 8 * 8].view(np.uint64)
    real = prob.dtype.type
    limits = real(1), real(1 - 2.**-24), real(2.**31)
    end = start = first * num_keys
    for i in range(first, last):
        stream = _stream(seed, query[i])
        left, right = prob[i, :half], prob[i, half:]
        _settle(stream, left, right, hit[:half], hit[half:], exploration, *limits)
        if num_keys % 2:
            bits = _random(stream, half) >> uint64(33)
            hit[num_keys - 1] = _succeeds(bits, prob[i, num_keys - 1] + exploration, *limits)
        for w in range(len(words)):
            if words[w]:
                for j in range(8 * w, min(8 * w + 8, num_keys)):
                    keys[end] = j
                    end += hit[j]
        size[i] = end - start
        start = end


@_jit_inline
def _settle(stream, left, right, left_hit, right_hit, exploration, one, below_one, scale):
    for j in range(len(left)):
        bits = _random(stream, j)
        left_hit[j] = _succeeds(bits >> uint64(33), left[j] + exploration, one, below_one, scale)
        right_hit[j] = _succeeds(bits >> uint64(2) & uint64(0x7FFFFFFF), right[j] + exploration,
                                 one, below_one, scale)


@_jit_inline
def _succeeds(bits, p, one, below_one, scale):
    threshold = np.int32(min(p, below_one) * scale)
    return uint8((np.int32(bits) < threshold) | (p >= one))


@_jit
def _copy_rows(first, last, keys, begin, size, first_key, indptr, key):
    for i in range(first, last):
        for e in range(size[i]):
            key[indptr[i] + e] = first_key[i] + keys[begin[i] + e]
