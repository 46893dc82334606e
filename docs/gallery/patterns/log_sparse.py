"""
LogSparse, causal or not
========================

A query attends to itself and to the positions a power of two away: on both sides or, if causal,
only to earlier positions. ``& patterns.Causal()`` makes any pattern causal.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.LogSparse(causal=True)
graph = pattern.build(64)
pattern

# %%
# The distance between diagonals doubles each time, and there are no edges above the main diagonal.
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
# A Laplacian needs a symmetric graph, so edges count in both directions. The gap decreases slowly
# with the length.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    print(f'{n} tokens: gap {spectrum(pattern.build(n)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# A number of up to 63 is a sum of at most 6 powers of two, so 6 layers reach every earlier key:
# 32.5 keys on average, 64 for the last query.
print(receptive_field(graph, hops=6).mean(axis=1))
draw.receptive_field(receptive_field(graph, hops=7))

# %%
# Time compared with full attention
# ---------------------------------
# The number of edges grows as n log n with the number of tokens. Full attention here is not causal.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'LogSparse': along, 'full attention': full})
