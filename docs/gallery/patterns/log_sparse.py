"""
LogSparse, causal or not
========================

A query attends to itself and to the positions a power of two away: on both sides or, causal, to
earlier ones alone. ``& patterns.Causal()`` does the same to any pattern.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.LogSparse(causal=True)
graph = pattern.build(64)
pattern

# %%
# Diagonals are twice as far apart each time, and nothing is above the main one.
draw.mask(graph)

# %%
# No line leads from a key to an earlier query.
draw.bipartite(graph)

# %%
# Late queries have more keys, and early keys more queries: at most 7 of the 64.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# A Laplacian needs a symmetric graph: that of the edges in both directions is taken. The gap falls
# slowly with the length.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    print(f'{n} tokens: gap {spectrum(pattern.build(n)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# A number of up to 63 is a sum of at most 6 powers of two, so 6 layers reach every earlier key:
# 32.5 in the mean, 64 for the last query.
print(receptive_field(graph, hops=6).mean(axis=1))
draw.receptive_field(receptive_field(graph, hops=7))

# %%
# Time beside full attention
# --------------------------
# Edges grow as the number of tokens times its logarithm. Full attention here is not causal.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'LogSparse': along, 'full attention': full})
