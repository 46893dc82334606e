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
# To multiply 64 rows by 4,096 keys of 128 clusters takes a third longer than 256 by 1,024, and to
# multiply fewer than 32 rows up to four times as long.
_KEYS_PER_PIECE, _MOST_PIECES, _FEWEST_ROWS = 2**10, 2**4, 2**5
_KEYS_AT_ONCE = 2**22  # for which a thread asks; what it does not fill is never touched


def compare(model: FactorModel, seed: np.uint64, *, keep_prob: bool = False,
            pairs_per_chunk: int | None = None) -> BipartiteGraph:
    """Draws each pair with its probability, which edges carry along if ``keep_prob``.

    Raises:
        ValueError: Some of the probabilities exceeds 1.
    """
    longest = max(model.key_ptr.diff().tolist(), default=0)
    keys_per_piece = max(_KEYS_PER_PIECE, -(-longest // _MOST_PIECES))
    if pairs_per_chunk is None:
        share = model.blocks.num_pairs // _NUM_CHUNKS
        pairs_per_chunk = max(min(_MOST_PAIRS, max(_FEWEST_PAIRS, share)),
                              _FEWEST_ROWS * min(longest, keys_per_piece))
    chunks = chunks_of(model.blocks, pairs_per_chunk, keys_per_piece)
    return _Comparison(model, seed, chunks, keep_prob).run()


class _Comparison:
    """Rows of a graph in the making, chunk by chunk."""

    def __init__(self, model: FactorModel, seed: np.uint64, chunks: list[Chunk], keep_prob: bool):
        self.model, self.seed, self.chunks, self.keep_prob = model, seed, chunks, keep_prob
        self.mixed_query = model.mixed_query().detach()
        self.key_factor = model.key_factor.detach().to(model.dtype)
        num_pieces = max((chunk.piece + 1 for chunk in chunks), default=1)
        self.size = np.zeros((num_pieces, model.num_queries), np.int64)  # of each piece of a row
        self.edges: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(chunks)

    def run(self) -> BipartiteGraph:
        num_pairs = max((chunk.num_pairs for chunk in self.chunks), default=0)
        # One for each call that runs at a time; taking and giving back are atomic.
        idle = [_Workspace(self.model, num_pairs, self.keep_prob)
                for _ in range(torch.get_num_threads())]
        run_calls([(self._draw, number, idle) for number in range(len(self.chunks))])
        indptr = from_zero(self.size.sum(0))
        start = indptr[:-1] + self.size.cumsum(0) - self.size
        key = np.empty(indptr[-1], key_dtype(self.model))
        edge_prob = np.empty(indptr[-1] * self.keep_prob, self.key_factor.numpy().dtype)
        run_calls([(_copy_chunk, chunk.first_query.numpy(), chunk.num_queries, *edges,
                    start[chunk.piece], self.size[chunk.piece], key, edge_prob)
                   for chunk, edges in zip(self.chunks, self.edges)])
        graph = graph_of_rows(self.model, indptr, key)
        return graph.with_edge_prob(torch.from_numpy(edge_prob)) if self.keep_prob else graph

    @torch.no_grad()  # of this thread
    def _draw(self, number: int, idle: list[_Workspace]) -> None:
        chunk, workspace = self.chunks[number], idle.pop()
        prob = chunk.products(self.mixed_query, self.key_factor, workspace.prob)
        real = prob.numpy().dtype.type
        num_edges = _compare_rows(
            self.seed, chunk.first_query.numpy(), chunk.first_key.numpy(), chunk.offset,
            prob.numpy(), real(self.model.exploration), real(self.model.highest_probability),
            *workspace.edges_for(chunk.num_pairs), self.size[chunk.piece])
        if num_edges < 0:
            self.model.check_probability(prob.amax().item())
        self.edges[number] = workspace.take_edges(num_edges)
        idle.append(workspace)


class _Workspace:
    """What one thread at a time writes to: products of a chunk, and edges one after the other."""

    def __init__(self, model: FactorModel, num_pairs: int, keep_prob: bool):
        with torch.inference_mode(False):  # in which other threads could not write to it
            self.prob = torch.empty(num_pairs, dtype=model.dtype)
        self._keys = np.empty(0, key_dtype(model))
        self._kept, self._keep_prob = np.empty(0, self.prob.numpy().dtype), keep_prob

    def edges_for(self, num_pairs: int) -> tuple[np.ndarray, np.ndarray]:
        """At least ``num_pairs`` keys to be written, and a word of them to be written in vain; as
        many probabilities if these are kept."""
        if self._keys.size < num_pairs + 8:
            self._keys = np.empty(max(num_pairs + 8, _KEYS_AT_ONCE), self._keys.dtype)
            self._kept = np.empty(self._keys.size * self._keep_prob, self._kept.dtype)
        return self._keys, self._kept

    def take_edges(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The first of them, which are written."""
        taken = self._keys[:size], self._kept[:size]
        self._keys, self._kept = self._keys[size:], self._kept[size:]
        return taken


@jit()
def _compare_rows(seed, first_query, first_key, offset, prob, exploration, highest, keys, kept,
                  size):
    """Draws the keys of a piece of each row of blocks and returns how many they are, or -1 if some
    ``prob`` is not at most ``highest``. 31 bits decide each trial: a half of 64 each for the two
    halves of a piece, which begins ``offset`` keys into the row."""
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
        is_refused |= _settle(stream, offset, left, right, hit[:half], hit[half:], exploration,
                              highest, *limits)
        if num_keys % 2:
            bits, p = random_bits(stream, offset + half) >> uint64(33), prob[row, num_keys - 1]
            hit[num_keys - 1] = _succeeds(bits, p + exploration, *limits)
            is_refused |= not p <= highest
        for word in words:
            if word:
                for j in range(8):  # each byte says whether its key stays or is written over
                    keys[end] = key + uint64(j)
                    end += word >> uint64(8 * j) & uint64(1)
            key += uint64(8)
        size[query] = end - start
        if len(kept) > 0:
            row_prob, origin = prob[row], uint64(first_key[block])
            for e in range(start, end):
                kept[e] = row_prob[uint64(keys[e]) - origin]
        start = end
    return -1 if is_refused else np.int64(end)


@jit(inline=True)
def _settle(stream, offset, left, right, left_hit, right_hit, exploration, highest, one, below_one,
            scale):
    """Trials of two halves of a piece; whether some probability exceeds the highest."""
    is_refused = False
    for j in range(len(left)):
        bits, p, q = random_bits(stream, offset + j), left[j], right[j]
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
def _copy_chunk(first_query, num_queries, keys, kept, start, size, key, edge_prob):
    """The pieces of a chunk's rows go to their places in the graph."""
    end = 0
    for block in range(len(first_query)):
        for query in range(first_query[block], first_query[block] + num_queries):
            n, first = size[query], start[query]
            key[first:first + n] = keys[end:end + n]
            if len(kept) > 0:
                edge_prob[first:first + n] = kept[end:end + n]
            end += n
