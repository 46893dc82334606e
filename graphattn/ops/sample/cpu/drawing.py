"""Independent draws of keys for each query, by Algorithm 1 of SBM-Transformer, in time linear in
the number of draws."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types, uint32, uint64
from numba.extending import intrinsic

from graphattn._jit import jit
from graphattn.ops.sample.cpu.alias_tables import look_up, max_segment_length
from graphattn.ops.sample.cpu.random_bits import random_bits, stream_of, uniform


@jit()
def draw_rows(first, last, seed, num_draws, query, cluster_mass, query_segment, key_ptr, tables,
              keys, begin, size):
    """Write the distinct keys among ``num_draws[i]`` draws of each query i to
    ``keys[begin[i]:]``."""
    # A draw chooses a cluster v in proportion to query[i, v] * cluster_mass[segment, v], and then a
    # key from its alias table. Keys are counted from the first key of the segment.
    num_clusters, num_keys = tables.shape
    half = 1
    while 2 * half < num_clusters:
        half *= 2
    cdf = np.full(2 * half, np.inf)
    num_words = max_segment_length(key_ptr) // 64 + 1
    seen, seen_groups = np.zeros(num_words, np.uint64), np.zeros(num_words // 64 + 1, np.uint8)
    batch = 256
    target, cluster = np.empty(batch, np.float64), np.empty(batch, np.uint64)
    bits, entry = np.empty(batch, np.uint64), np.empty(batch, np.uint64)
    table = tables.reshape(tables.size)
    for i in range(first, last):
        size[i] = 0
        if num_draws[i] == 0:
            continue
        segment = query_segment[i]
        first_key, n = key_ptr[segment], key_ptr[segment + 1] - key_ptr[segment]
        total = 0.
        row, mass = query[i], cluster_mass[segment]
        for v in range(num_clusters):
            total += row[v] * mass[v]
            cdf[v] = total
        stream = stream_of(seed, i)
        for done in range(0, num_draws[i], batch):
            m = min(batch, num_draws[i] - done)
            for d in range(m):
                target[d] = uniform(random_bits(stream, 2 * (done + d))) * total
                bits[d] = random_bits(stream, 2 * (done + d) + 1)
            _search(cdf, half, target[:m], cluster[:m])
            look_up(table, cluster[:m], bits[:m], entry, num_keys, first_key, n, seen,
                    seen_groups)
        size[i] = _collect(seen, seen_groups, n, keys[begin[i]:])


@jit()
def _search(cdf, half, target, cell):
    # The first v with cdf[v] > target[d]. All targets take the same steps of a bisection, so that
    # there are no branches to predict; cdf has 2 * half entries, half a power of two.
    for d in range(len(target)):
        cell[d] = 0
    step = half
    while step > 0:
        for d in range(len(target)):
            is_beyond = cdf[cell[d] + uint64(step - 1)] <= target[d]
            cell[d] += uint64(step if is_beyond else 0)
        step //= 2


@jit()
def _collect(seen, seen_groups, n, keys):
    # writes marked keys, ascending, and clears the marks
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


@intrinsic
def _lowest_bit(typingctx, word):
    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
    return types.uint64(types.uint64), codegen
