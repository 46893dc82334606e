"""
Random keys
===========

Each query attends to a number of keys, drawn uniformly, and here to itself. ``RandomPairs`` draws
from all pairs instead, and ``RandomBlocks`` draws blocks of keys for blocks of queries.
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
# Edges have random lengths.
draw.bipartite(graph)

# %%
# Each query has the drawn keys and itself, which may be one of them. The number of queries that
# attend to a key is random.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# A few random edges mix almost equally well at any length: from 64 to 256 tokens the gap of a
# window falls to a sixteenth, and this gap changes little.
draw.spectrum(spectrum(graph).values)
window = patterns.SlidingWindow(2)
for n in (64, 128, 256):
    gaps = [spectrum(each.build(n, seed=0)).lambda_2 for each in (pattern, window)]
    print(f'{n} tokens: gap {gaps[0]:.1e}, of a window with equally many keys {gaps[1]:.1e}')

# %%
# Receptive field over layers
# ---------------------------
# The field grows by a factor in each layer until it contains almost all keys. The lower end of the
# band is the query with the smallest field.
draw.receptive_field(receptive_field(graph, hops=8))

# %%
# Time compared with full attention
# ---------------------------------
# Random keys are scattered in memory; the keys of a window are contiguous.
along, window_times, full = {}, {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
    window_times[n] = speed(window.build(n)).seconds
draw.times({'random keys': along, 'window': window_times, 'full attention': full})
