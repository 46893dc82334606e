"""
Random keys
===========

With ``RandomKeys`` each query attends to the same number of uniformly drawn keys. On this page each
query also attends to itself. ``RandomPairs`` draws from all pairs instead, and ``RandomBlocks``
draws blocks of keys for blocks of queries.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.RandomKeys(4) | patterns.SlidingWindow(0)
graph = pattern.build(64, seed=0)
pattern

# %%
# The same seed draws the same edges.
draw.mask(graph)

# %%
# The distances between keys and queries are random.
draw.bipartite(graph)

# %%
# Each query attends to 4 drawn keys and to itself. It has 4 keys instead of 5 if it drew itself.
# The number of queries that attend to a key is random.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# With a few random keys per query, the gap changes little from 64 to 256 tokens. The gap of a
# window with as many keys falls to a sixteenth.
draw.spectrum(spectrum(graph).values)
window = patterns.SlidingWindow(2)
for n in (64, 128, 256):
    gaps = [spectrum(each.build(n, seed=0)).lambda_2 for each in (pattern, window)]
    print(f'{n} tokens: gap {gaps[0]:.1e}, of a window with equally many keys {gaps[1]:.1e}')

# %%
# Receptive field over layers
# ---------------------------
# The receptive field is multiplied by a factor in each layer, until it contains almost all keys.
# The lower end of the band is the query with the smallest field.
draw.receptive_field(receptive_field(graph, hops=8))

# %%
# Time compared with full attention
# ---------------------------------
# The figure compares random keys with a window. Random keys are scattered in memory, and the keys
# of a window are contiguous.
along, window_times, full = {}, {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
    window_times[n] = speed(window.build(n)).seconds
draw.times({'random keys': along, 'window': window_times, 'full attention': full})
