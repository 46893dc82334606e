"""
Random keys
===========

Each query attends to so many keys, drawn uniformly, and here to itself. ``RandomPairs`` draws pairs
out of all instead, and ``RandomBlocks`` blocks of keys for blocks of queries.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.RandomKeys(4) | patterns.SlidingWindow(0)
graph = pattern.build(64, seed=0)
pattern

# %%
# The same seed gives the same edges.
draw.mask(graph)

# %%
# Edges are as long as chance makes them.
draw.bipartite(graph)

# %%
# Each query has the keys that it draws and itself, which may be one of them. How many queries
# attend to a key is left to chance.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# Few random edges mix almost as well at any length: from 64 to 256 tokens the gap of a window
# falls to a sixteenth, and this one changes little.
draw.spectrum(spectrum(graph).values)
window = patterns.SlidingWindow(2)
for n in (64, 128, 256):
    gaps = [spectrum(each.build(n, seed=0)).lambda_2 for each in (pattern, window)]
    print(f'{n} tokens: gap {gaps[0]:.1e}, of a window with as many keys {gaps[1]:.1e}')

# %%
# Receptive field over layers
# ---------------------------
# The field grows by a factor in each layer until nearly all keys are reached. The band shows the
# query that is worst off.
draw.receptive_field(receptive_field(graph, hops=8))

# %%
# Time beside full attention
# --------------------------
# Random keys lie anywhere in memory, a window's side by side.
along, window_times, full = {}, {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
    window_times[n] = speed(window.build(n)).seconds
draw.times({'random keys': along, 'window': window_times, 'full attention': full})
