"""Random bits of compiled loops, and independent draws of keys for each query by Algorithm 1 of
SBM-Transformer, in time linear in the number of draws."""

from __future__ import annotations

import numpy as np
import torch
from llvmlite import ir
from numba import types, uint32, uint64
from numba.extending import intrinsic

from graphattn._jit import jit
from graphattn._splitmix import ROW
from graphattn.ops.cpu import splitmix


def draw_seed(generator: torch.Generator | None) -> np.uint64:
    """Return a random seed from a generator of torch, or from its default generator for None."""
    seed = torch.empty((), dtype=torch.long).random_(-2**63, None, generator=generator)
    return np.uint64(seed.item() % 2**64)


def seed_from_row(seed: np.uint64, row: int) -> np.uint64:
    """Return a seed under which row 0 has the random bits of row ``row`` under ``seed``."""
    return np.uint64((int(seed) + row * ROW) % 2**64)


@jit(inline=True)
def stream_of(seed, row):
    # a function of seed and row, so that the graph does not depend on which thread computes the row
    return splitmix.mix(seed + uint64(row) * uint64(ROW))


@jit(inline=True)
def random_bits(stream, position):
    return splitmix.random_bits(stream, uint64(position) + uint64(1))


@jit(inline=True)
def uniform(bits):
    # float64 in [0, 1)
    return np.float64(bits >> uint64(11)) * 2.**-53


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


_SLOT = 2**32


@jit()
def fill_tables(first, last, columns, key_ptr, mass, tables):
    """Write alias tables, from which :func:`look_up` draws keys in proportion to ``columns[v]``."""
    # Table v * num_segments + segment divides the n keys of a segment into n equally likely slots,
    # with an own key and an alias. Its entry has a threshold and the alias, 32 bits each: random
    # bits below the threshold select the own key. Shares are integers that sum to n slots exactly,
    # so a key with share 0 is never selected. columns, tables: [k, num_keys]; mass: [num_segments,
    # k]
    longest, num_segments = max_segment_length(key_ptr), len(key_ptr) - 1
    share = np.empty(longest, np.int64)
    lights, heavies = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.uint64)
    for item in range(first, last):
        column, segment = item // num_segments, item % num_segments
        begin, end = key_ptr[segment], key_ptr[segment + 1]
        table, weight, n = tables[column, begin:end], columns[column, begin:end], end - begin
        column_mass, slots, total = mass[segment, column], n * 2.**32, 0
        if column_mass <= 0:
            continue
        for j in range(n):
            # The weight is divided first, because slots / mass may overflow if the mass is small.
            share[j] = np.int64(weight[j] / column_mass * slots + 0.5)
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
                # Each step completes one slot: the slot of the next light key, filled up by the
                # heavy key, or the slot of the heavy key, filled up by the next heavy key.
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


@jit()
def look_up(table, cluster, bits, entry, num_keys, first_key, n, seen, seen_groups):
    """Draw a key for each element of ``cluster``, and mark it in ``seen`` and ``seen_groups``."""
    # seen has a bit for each key of the segment, seen_groups a byte for each 4,096 keys; table: all
    # tables, flat; first_key, n: of the segment; entry: workspace [draws]
    low, high = uint64(0xFFFFFFFF), uint64(32)
    # Two loops, for the table and for the marks, so that each has many loads in flight.
    for d in range(len(bits)):
        slot = (bits[d] >> high) * uint64(n) >> high
        entry[d] = table[cluster[d] * uint64(num_keys) + uint64(first_key) + slot]
    for d in range(len(bits)):
        slot = (bits[d] >> high) * uint64(n) >> high
        j = slot if bits[d] & low < entry[d] >> high else entry[d] & low
        seen[j >> uint64(6)] |= uint64(1) << (j & uint64(63))
        seen_groups[j >> uint64(12)] = 1


@jit()
def max_segment_length(ptr):
    longest = 0
    for segment in range(len(ptr) - 1):
        longest = max(longest, ptr[segment + 1] - ptr[segment])
    return longest
