"""Alias tables, in which one lookup draws from any discrete distribution (Walker, 1977)."""

from __future__ import annotations

import numpy as np
from numba import uint64

from graphattn._jit import jit

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
