"""Random graphs by a Bernoulli trial for each pair, in loops for CPUs, drawn while products are
cached.

16 random bits and a product of rounded factors decide nearly all trials. If the two are too close,
the exact product and 47 bits decide. So the graph does not depend on how products are rounded.
"""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import torch
from numba import uint8, uint64
from torch import Tensor

from graphattn._jit import REORDERED_SUMS, jit
from graphattn._threads import run_calls
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.cpu.simd import add_and_store_eight, number_of
from graphattn.ops.sample.cpu.drawing import max_segment_length, random_bits, stream_of
from graphattn.ops.sample.cpu.rates import pair_arrays, pair_factors, product_of_rows
from graphattn.ops.sample.cpu.rows import from_zero, graph_of_rows, key_dtype
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.trials import Chunk, chunks_of

# Pairs of a chunk, and number of chunks. The products of a chunk fit in the cache of a core: 1 MB
# of bfloat16. If there are fewer pairs, they are still cut into several chunks, so that threads can
# share them. Chunks must not depend on the number of threads, because the rounding of products
# depends on the number of rows.
_MAX_PAIRS, _MIN_PAIRS, _NUM_CHUNKS = 2**19, 2**15, 16
# Keys of a piece of a row, number of pieces, and rows of a chunk. Multiplying fewer than 32 rows at
# once takes up to four times as long.
_KEYS_PER_PIECE, _MAX_PIECES, _MIN_ROWS = 2**11, 2**4, 2**5
_KEYS_AT_ONCE = 2**22  # that a thread allocates; pages that it does not fill take no memory
# Longest segment, in keys times clusters, for which a loop computes products as fast as a library.
# On one core, 60, 256 and 512 keys of 32 clusters took 2.5, 1.2 and 1.5 ns a pair, trial included,
# and 5.5, 2.7 and 1.6 ns through the library.
SHORT, _ROWS_AT_ONCE = 2**13, 2**6
_SMALL = 2**22  # number of products below which choosing their dtype takes longer than the products
# The trial of a pair takes as long as _PAIR products. If a chunk has less work than _SHARED
# products on average, one thread computes all chunks, because several threads would mostly wait for
# the interpreter.
_PAIR, _SHARED = 2**5, 2**20


# The bound 2^-7 on the relative error of a bfloat16 product: both factors and the result are
# rounded by up to 2^-9 each, and the rest covers the sum. Factors below 2^-126 count as 0, which
# changes no probability if no factor exceeds 2^20.
_MARGIN, _MAX_FACTOR = 2.**-7, 2.**20
_NUM_BITS, _MORE_BITS = 16, 31  # random bits of a trial: the first, and more if it is undecided
_LEFT_OPEN = 2**40  # position of the bits of undecided trials in the stream of a row
# Tables by the outcomes of eight trials, as the bits of a number: which trials succeed (their
# indices come first), and how many.
_OUTCOMES = np.arange(256)[:, None] >> np.arange(8) & 1
_SUCCESSES = np.argsort(1 - _OUTCOMES, kind='stable').astype(np.uint16)
_NUM_SUCCESSES = _OUTCOMES.sum(1).astype(np.uint64)


def compare(model: FactorModel, seed: np.uint64, *, pairs_per_chunk: int | None = None,
            product_dtype: torch.dtype | None = None) -> BipartiteGraph:
    """Return a graph in which each pair is an edge with its probability under ``model``."""
    # the graph depends neither on the chunks nor on the dtype of products
    if pairs_per_chunk is product_dtype is None and _is_short(model):
        graph = _compare_short(model, seed)
        if graph is not None:
            return graph
    longest = max(model.key_ptr.diff().tolist(), default=0)
    keys_per_piece = max(_KEYS_PER_PIECE, -(-longest // _MAX_PIECES))
    if pairs_per_chunk is None:
        share = model.segments.num_pairs // _NUM_CHUNKS
        pairs_per_chunk = max(min(_MAX_PAIRS, max(_MIN_PAIRS, share)),
                              _MIN_ROWS * min(longest, keys_per_piece))
    chunks = chunks_of(model.segments, pairs_per_chunk, keys_per_piece)
    return _Comparison(model, seed, chunks, product_dtype).run()


def _is_short(model: FactorModel) -> bool:
    ptr = model.key_ptr.numpy()
    longest = int((ptr[1:] - ptr[:-1]).max(initial=0))
    return longest <= _KEYS_PER_PIECE and 0 < longest * model.num_clusters <= SHORT


def _compare_short(model: FactorModel, seed: np.uint64) -> BipartiteGraph | None:
    arrays, limits, dtype = pair_arrays(model), _limits(model, model.dtype), key_dtype(model)
    work = model.segments.num_pairs * (model.num_clusters + _PAIR)
    parts = _parts_of_rows(model, min(1 + work // _SHARED, _NUM_CHUNKS))
    keys = [np.empty(num_pairs + 16, dtype) for *_, num_pairs in parts]
    indptr, found = np.zeros(model.num_queries + 1, np.int64), np.empty(len(parts), np.int64)
    _run([(_draw_rows, first, last, seed, *limits, *arrays, keys[part], indptr[1:],
           found[part:part + 1]) for part, (first, last, _) in enumerate(parts)], is_shared=True)
    # a probability exceeds 1
    if found.min() < 0:
        return None
    drawn = [part[:size] for part, size in zip(keys, found)]
    return graph_of_rows(model, indptr.cumsum(), np.concatenate(drawn))


def _parts_of_rows(model: FactorModel, num_parts: int) -> list[tuple[int, int, int]]:
    if num_parts == 1:
        return [(0, model.num_queries, model.segments.num_pairs)]
    query_ptr = model.query_ptr.numpy()
    num_pairs = from_zero(model.segments.pairs_per_segment().numpy())
    share = np.linspace(0, num_pairs[-1], num_parts + 1)
    bounds = np.interp(share, num_pairs, query_ptr).astype(np.int64)
    bounds[-1] = model.num_queries
    max_edges = np.diff(np.interp(bounds, query_ptr, num_pairs)).astype(np.int64)
    return [*zip(bounds[:-1], bounds[1:], max_edges)]


def _run(calls: list[tuple], *, is_shared: bool) -> None:
    if is_shared and len(calls) > 1:
        return run_calls(calls)
    for function, *arguments in calls:
        function(*arguments)


def _limits(model: FactorModel, dtype: torch.dtype) -> tuple[np.floating, ...]:
    margin = _MARGIN if dtype == torch.bfloat16 else (
        (model.num_clusters + 4) * torch.finfo(dtype).eps)
    real = np.float64 if model.dtype == torch.float64 else np.float32
    # The exact product is between the first two times p, the product in dtype. Exploration adds the
    # third to each probability; the fourth is the highest valid one.
    return (real(1 - margin), real(1 + margin), real(min(model.exploration, 1.)),
            real(model.highest_probability))


class _Comparison:
    """Random trials of all pairs of a model, chunk by chunk, in threads that claim chunks."""

    def __init__(self, model: FactorModel, seed: np.uint64, chunks: list[Chunk],
                 product_dtype: torch.dtype | None):
        self.model, self.seed, self.chunks = model, seed, chunks
        self.factors = pair_factors(model)
        self.num_pairs = model.segments.num_pairs
        is_small = self.num_pairs * model.num_clusters < _SMALL
        dtype = product_dtype or (model.dtype if is_small else _fastest_dtype(
            *self.factors, model.highest_probability))
        self.rounded = tuple(factor.to(dtype) for factor in self.factors)
        self.limits = _limits(model, dtype)
        num_pieces = max((chunk.piece + 1 for chunk in chunks), default=1)
        self.size = np.zeros((num_pieces, model.num_queries), np.int64)  # per piece of a row
        self.keys: list[np.ndarray | None] = [None] * len(chunks)

    # No thread waits for another before the end, so a busy core delays only its own chunks.
    def run(self) -> BipartiteGraph:
        num_pairs = max((chunk.num_pairs for chunk in self.chunks), default=0)
        # One workspace for each concurrent call; pop and append of lists are atomic.
        idle = [_Workspace(num_pairs, self.num_pairs, self.rounded[0].dtype, key_dtype(self.model))
                for _ in range(min(torch.get_num_threads(), len(self.chunks)))]
        self._run([(self._draw, number, idle) for number in range(len(self.chunks))])
        indptr = from_zero(self.size.sum(0))
        start = indptr[:-1] + self.size.cumsum(0) - self.size
        key = np.empty(indptr[-1], key_dtype(self.model))
        self._run([(_copy_chunk, chunk.first_query.numpy(), chunk.num_queries, keys,
                    start[chunk.piece], self.size[chunk.piece], key)
                   for chunk, keys in zip(self.chunks, self.keys)])
        return graph_of_rows(self.model, indptr, key)

    def _run(self, calls: list[tuple]) -> None:
        work = self.num_pairs * (self.model.num_clusters + _PAIR)
        _run(calls, is_shared=work >= _SHARED * len(calls))

    @torch.no_grad()  # grad mode is thread-local
    def _draw(self, number: int, idle: list[_Workspace]) -> None:
        chunk, workspace = self.chunks[number], idle.pop()
        prob = chunk.products(*self.rounded, workspace.prob)
        query, key_factor = (factor.numpy() for factor in self.factors)
        num_edges = _compare_rows(
            self.seed, chunk.first_query.numpy(), chunk.first_key.numpy(), chunk.offset,
            _as_array(prob), *self.limits, query, key_factor,
            workspace.keys_for(chunk.num_pairs), self.size[chunk.piece])
        if num_edges < 0:
            self.model.check_probability(prob.amax().item())
        self.keys[number] = workspace.take_keys(num_edges)
        idle.append(workspace)


class _Workspace:
    def __init__(self, num_pairs: int, num_keys: int, dtype: torch.dtype, key_dtype: np.dtype):
        self._keys_at_once = min(num_keys + 8, _KEYS_AT_ONCE)
        with torch.inference_mode(False):  # other threads could not write to an inference tensor
            self.prob = torch.empty(num_pairs, dtype=dtype)
        self._keys = np.empty(0, key_dtype)

    def keys_for(self, num_pairs: int) -> np.ndarray:
        # 8 more, because loops store 8 keys at a time
        if self._keys.size < num_pairs + 8:
            self._keys = np.empty(max(num_pairs + 8, self._keys_at_once), self._keys.dtype)
        return self._keys

    def take_keys(self, size: int) -> np.ndarray:
        taken, self._keys = self._keys[:size], self._keys[size:]
        return taken


def _fastest_dtype(query: Tensor, key_factor: Tensor, highest: float) -> torch.dtype:
    dtype = query.dtype
    if dtype != torch.float32 or not query.numel() or not key_factor.numel():
        return dtype
    key_max = key_factor.amax(0)
    is_bounded = ((query @ key_max).amax() <= highest
                  and max(query.amax(), key_max.amax()) <= _MAX_FACTOR)
    # some CPUs have instructions for bfloat16, others need several steps
    return torch.bfloat16 if is_bounded and _bfloat16_is_faster() else dtype


@cache
def _bfloat16_is_faster() -> bool:
    return _seconds_to_multiply(torch.bfloat16) < .8 * _seconds_to_multiply(torch.float32)


def _seconds_to_multiply(dtype: torch.dtype) -> float:
    x, y = torch.ones(256, 128, dtype=dtype), torch.ones(1024, 128, dtype=dtype)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        x @ y.mT
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _as_array(prob: Tensor) -> np.ndarray:
    if prob.dtype == torch.bfloat16:
        # its bits, because numpy has no bfloat16
        return prob.view(torch.int16).numpy().view(np.uint16)
    return prob.numpy()


@jit()
def _draw_rows(first, last, seed, below, above, exploration, highest, query_factor, key_factor,
               query_ptr, key_ptr, keys, size, found):
    # writes keys of edges to ``keys``, their number of each query to ``size`` and of all to
    # found[0], which is -1 if a probability exceeds ``highest`` or is NaN
    max_keys, num_clusters, end = max_segment_length(key_ptr), key_factor.shape[1], 0
    columns = np.empty(num_clusters * max_keys, key_factor.dtype)
    products = np.empty(_ROWS_AT_ONCE * max_keys, key_factor.dtype)
    first_query = np.empty(1, np.int64)
    for segment in range(len(query_ptr) - 1):
        begin, stop = max(first, query_ptr[segment]), min(last, query_ptr[segment + 1])
        if begin >= stop:
            continue
        key = key_factor[key_ptr[segment]:key_ptr[segment + 1]]
        column = columns[:num_clusters * len(key)].reshape(num_clusters, len(key))
        for j in range(len(key)):
            for v in range(num_clusters):
                column[v, j] = key[j, v]
        for row in range(begin, stop, _ROWS_AT_ONCE):
            query = query_factor[row:min(row + _ROWS_AT_ONCE, stop)]
            prob = products[:len(query) * len(key)].reshape(len(query), len(key))
            _multiply(query, column, prob)
            first_query[0] = row
            num_edges = _compare_rows(
                seed, first_query, key_ptr[segment:segment + 1], 0, prob, below, above, exploration,
                highest, query_factor, key_factor, keys[end:], size)
            if num_edges < 0:
                found[0] = -1
                return
            end += num_edges
    found[0] = end


@jit(fastmath=REORDERED_SUMS)
def _multiply(query, columns, prob):
    num_whole = len(columns) // 4 * 4
    for i in range(len(query)):
        row, share = prob[i], query[i]
        for j in range(len(row)):
            row[j] = 0
        for v in range(0, num_whole, 4):
            s0, s1, s2, s3 = share[v], share[v + 1], share[v + 2], share[v + 3]
            for j in range(len(row)):
                row[j] += (s0 * columns[v, j] + s1 * columns[v + 1, j] + s2 * columns[v + 2, j]
                           + s3 * columns[v + 3, j])
        for v in range(num_whole, len(columns)):
            for j in range(len(row)):
                row[j] += share[v] * columns[v, j]


@jit()
def _compare_rows(seed, first_query, first_key, offset, prob, below, above, exploration, highest,
                  query_factor, key_factor, keys, size):
    # Returns the number of edges, or -1 if a probability exceeds ``highest`` or is NaN.
    # first_query, first_key: of each segment; offset: keys before the chunk; prob: rounded
    # products. Each query has its own random bits; a word serves four keys, one in each quarter.
    num_rows, num_keys = prob.shape
    rows_per_segment, quarter = num_rows // len(first_query), num_keys // 4
    trials = np.zeros(num_keys + 8, np.uint8)
    words = trials[:(num_keys + 7) // 8 * 8].view(np.uint64)
    ones = uint64(0x0101010101010101)
    scale = query_factor.dtype.type(2**_NUM_BITS)
    limits = below * scale, above * scale, exploration * scale, highest / below
    end = start = uint64(0)
    is_refused = False
    for row in range(num_rows):
        segment = row // rows_per_segment
        query, first = first_query[segment] + row % rows_per_segment, first_key[segment]
        stream, p = stream_of(seed, query), prob[row]
        is_refused |= _try_quarters(
            stream, offset, p[:quarter], p[quarter:2 * quarter], p[2 * quarter:3 * quarter],
            p[3 * quarter:4 * quarter], trials[:quarter], trials[quarter:2 * quarter],
            trials[2 * quarter:3 * quarter], trials[3 * quarter:4 * quarter], *limits)
        for j in range(4 * quarter, num_keys):
            trials[j] = _try(_first_bits(stream, offset, quarter, j), p[j], *limits[:3])
            is_refused |= not number_of(p[j]) <= limits[3]
        key = uint64(first)
        for number in range(len(words)):
            word = words[number]
            is_open = (word >> uint64(1)) & ~word & ones
            if is_open:
                for j in range(8 * number, 8 * number + 8):
                    if (is_open >> uint64(j % 8 * 8)) & uint64(1):
                        bits = _first_bits(stream, offset, quarter, j)
                        exact = product_of_rows(query_factor, query, key_factor, first + j)
                        word |= uint64(_succeeds(bits, stream, offset + j, exact, exploration)
                                       ) << uint64(j % 8 * 8)
            outcomes = (word & ones) * uint64(0x0102040810204080) >> uint64(56)  # one bit per trial
            add_and_store_eight(keys, end, key, _SUCCESSES, outcomes)  # successes come first
            end += _NUM_SUCCESSES[outcomes]
            key += uint64(8)
        size[query] = end - start
        start = end
    return -1 if is_refused else np.int64(end)


@jit(inline=True)
def _try_quarters(stream, offset, p0, p1, p2, p3, trial0, trial1, trial2, trial3, low, high, least,
                  highest):
    # p0 to p3: rounded products in each quarter; offset: position of the first random bits
    is_refused = False
    for j in range(len(p0)):
        bits = random_bits(stream, offset + j)
        trial0[j] = _try(bits & uint64(0xFFFF), p0[j], low, high, least)
        trial1[j] = _try(bits >> uint64(16) & uint64(0xFFFF), p1[j], low, high, least)
        trial2[j] = _try(bits >> uint64(32) & uint64(0xFFFF), p2[j], low, high, least)
        trial3[j] = _try(bits >> uint64(48), p3[j], low, high, least)
        is_refused |= not ((number_of(p0[j]) <= highest) & (number_of(p1[j]) <= highest)
                           & (number_of(p2[j]) <= highest) & (number_of(p3[j]) <= highest))
    return is_refused


@jit(inline=True)
def _first_bits(stream, offset, quarter, j):
    # The up to three keys after the last quarter have a word each.
    if j >= 4 * quarter:
        return random_bits(stream, offset + j - 3 * quarter) & uint64(0xFFFF)
    return random_bits(stream, offset + j % quarter) >> uint64(16 * (j // quarter)) & uint64(0xFFFF)


@jit(inline=True)
def _try(bits, p, low, high, least):
    # 3 if it succeeds, 0 if it fails, 2 if more bits must decide; the probability times 2^16 is
    # between p * low + least and p * high + least
    number, draw = number_of(p), np.int32(bits)
    succeeds = draw < np.int32(number * low + least)
    may_succeed = draw <= np.int32(number * high + least)
    return uint8(succeeds) | uint8(may_succeed) << uint8(1)


@jit(inline=True)
def _succeeds(bits, stream, position, exact, exploration):
    more = random_bits(stream, uint64(_LEFT_OPEN) + uint64(position)) >> uint64(64 - _MORE_BITS)
    draw = np.float64(bits << uint64(_MORE_BITS) | more) * 2.**-(_NUM_BITS + _MORE_BITS)
    return draw < np.float64(exact) + exploration


@jit()
def _copy_chunk(first_query, num_queries, keys, start, size, key):
    # start, size: where the keys of each query begin in ``key``, and their number
    end = 0
    for segment in range(len(first_query)):
        for query in range(first_query[segment], first_query[segment] + num_queries):
            n, first = size[query], start[query]
            for e in range(n):  # a slice would take numba a second to compile
                key[first + e] = keys[end + e]
            end += n
