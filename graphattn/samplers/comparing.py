"""A trial for each pair: its probability is compared with a random number, in one pass.

The pass is one parallel region. A thread takes a chunk of rows, multiplies it out and draws from
the products while they are in its cache, then takes the next chunk: none waits for another until
all are done, so that a core that is busy with other work costs no more than its share.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import uint8, uint64

from graphattn._jit import jit
from graphattn._threads import run_calls
from graphattn.graph import BipartiteGraph
from graphattn.samplers.chunks import Chunk, chunks_of
from graphattn.samplers.factor_model import FactorModel
from graphattn.samplers.random_bits import random_bits, stream_of
from graphattn.samplers.rows import from_zero, graph_of_rows, key_dtype

# A chunk's products stay in a core's own cache: 1 MB of float32. Fewer pairs are cut into several
# chunks all the same, so that threads can share them; how is no business of the number of threads,
# for rounding differs with the number of rows that are multiplied at once.
_MOST_PAIRS, _FEWEST_PAIRS, _NUM_CHUNKS = 2**18, 2**15, 16
_FEWEST_ROWS = 32  # to multiply fewer at once takes up to four times as long
_KEYS_AT_ONCE = 2**22  # for which a thread asks; what it does not fill is never touched


def compare(model: FactorModel, seed: np.uint64, *, pairs_per_chunk: int | None = None
            ) -> BipartiteGraph:
    """Draws each pair with its probability.

    Raises:
        ValueError: Some of the probabilities exceeds 1.
    """
    if pairs_per_chunk is None:
        pairs_per_chunk = _pairs_per_chunk(model)
    return _Comparison(model, seed, chunks_of(model.blocks, pairs_per_chunk)).run()


def _pairs_per_chunk(model: FactorModel) -> int:
    longest = max(model.key_ptr.diff().tolist(), default=0)
    share = model.blocks.num_pairs // _NUM_CHUNKS
    return max(min(_MOST_PAIRS, max(_FEWEST_PAIRS, share)), _FEWEST_ROWS * longest)


class _Comparison:
    """Rows of a graph in the making, chunk by chunk."""

    def __init__(self, model: FactorModel, seed: np.uint64, chunks: list[Chunk]):
        self.model, self.seed, self.chunks = model, seed, chunks
        self.mixed_query = model.mixed_query().detach()
        self.key_factor = model.key_factor.detach().to(model.dtype)
        self.size = np.zeros(model.num_queries, np.int64)
        self.keys: list[np.ndarray | None] = [None] * len(chunks)

    def run(self) -> BipartiteGraph:
        num_pairs = max((chunk.num_pairs for chunk in self.chunks), default=0)
        # One for each call that runs at a time; taking and giving back are atomic.
        idle = [_Workspace(self.model, num_pairs) for _ in range(torch.get_num_threads())]
        run_calls([(self._draw, number, idle) for number in range(len(self.chunks))])
        indptr = from_zero(self.size)
        key = np.empty(indptr[-1], key_dtype(self.model))
        run_calls([(_copy_chunk, chunk.first_query.numpy(), chunk.num_queries, keys, indptr, key)
                   for chunk, keys in zip(self.chunks, self.keys)])
        return graph_of_rows(self.model, indptr, key)

    @torch.no_grad()  # of this thread
    def _draw(self, number: int, idle: list[_Workspace]) -> None:
        chunk, workspace = self.chunks[number], idle.pop()
        prob = chunk.products(self.mixed_query, self.key_factor, workspace.prob)
        real = prob.numpy().dtype.type
        num_edges = _compare_rows(
            self.seed, chunk.first_query.numpy(), chunk.first_key.numpy(), prob.numpy(),
            real(self.model.exploration), real(self.model.highest_probability),
            workspace.keys_for(chunk.num_pairs), self.size)
        if num_edges < 0:
            self.model.check_probability(prob.amax().item())
        self.keys[number] = workspace.take_keys(num_edges)
        idle.append(workspace)


class _Workspace:
    """What one thread at a time writes to: products of a chunk, and keys one after the other."""

    def __init__(self, model: FactorModel, num_pairs: int):
        with torch.inference_mode(False):  # in which other threads could not write to it
            self.prob = torch.empty(num_pairs, dtype=model.dtype)
        self._keys = np.empty(0, key_dtype(model))

    def keys_for(self, num_pairs: int) -> np.ndarray:
        """At least ``num_pairs`` keys to be written, and a word of them to be written in vain."""
        if self._keys.size < num_pairs + 8:
            self._keys = np.empty(max(num_pairs + 8, _KEYS_AT_ONCE), self._keys.dtype)
        return self._keys

    def take_keys(self, size: int) -> np.ndarray:
        """The first of them, which are written."""
        taken, self._keys = self._keys[:size], self._keys[size:]
        return taken


@jit()
def _compare_rows(seed, first_query, first_key, prob, exploration, highest, keys, size):
    """Draws the keys of each row of blocks and returns how many they are, or -1 if some ``prob`` is
    not at most ``highest``. 31 bits decide each trial: a half of 64 each for the two halves of a
    row."""
    num_rows, num_keys = prob.shape
    rows_per_block, half = num_rows // len(first_query), num_keys // 2
    hit = np.zeros(num_keys + 8, np.uint8)
    words = hit[:(num_keys + 7) // 8 * 8].view(np.uint64)
    real = prob.dtype.type
    limits = real(1), real(1 - 2.**-24), real(2.**31)
    end = start = uint64(0)
    is_refused = False
    for row in range(num_rows):
        block = row // rows_per_block
        query, key = first_query[block] + row % rows_per_block, uint64(first_key[block])
        stream = stream_of(seed, query)
        left, right = prob[row, :half], prob[row, half:]
        is_refused |= _settle(stream, left, right, hit[:half], hit[half:], exploration, highest,
                              *limits)
        if num_keys % 2:
            bits, p = random_bits(stream, half) >> uint64(33), prob[row, num_keys - 1]
            hit[num_keys - 1] = _succeeds(bits, p + exploration, *limits)
            is_refused |= not p <= highest
        for word in words:
            if word:
                for j in range(8):  # each byte says whether its key stays or is written over
                    keys[end] = key + uint64(j)
                    end += word >> uint64(8 * j) & uint64(1)
            key += uint64(8)
        size[query] = end - start
        start = end
    return -1 if is_refused else np.int64(end)


@jit(inline=True)
def _settle(stream, left, right, left_hit, right_hit, exploration, highest, one, below_one, scale):
    """Trials of two halves of a row; whether some probability exceeds the highest."""
    is_refused = False
    for j in range(len(left)):
        bits, p, q = random_bits(stream, j), left[j], right[j]
        left_hit[j] = _succeeds(bits >> uint64(33), p + exploration, one, below_one, scale)
        right_hit[j] = _succeeds(bits >> uint64(2) & uint64(0x7FFFFFFF), q + exploration,
                                 one, below_one, scale)
        is_refused |= not (p <= highest) & (q <= highest)
    return is_refused


@jit(inline=True)
def _succeeds(bits, p, one, below_one, scale):
    threshold = np.int32(min(p, below_one) * scale)
    return uint8((np.int32(bits) < threshold) | (p >= one))


@jit()
def _copy_chunk(first_query, num_queries, keys, indptr, key):
    """The rows of a chunk go to their places in the graph."""
    start = 0
    for query in first_query:
        for e in range(indptr[query], indptr[query + num_queries]):
            key[e] = keys[start]
            start += 1
