"""
LogSparse, causal or not
========================

A query of ``LogSparse`` attends to itself and to the positions whose distance is a power of two.
With ``causal=True`` it attends only to earlier positions, and otherwise to positions on both sides.
To make any other pattern causal, write ``pattern & patterns.Causal()``.
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
# No edge leads from a key to an earlier query.
draw.bipartite(graph)

# %%
# Late queries have more keys than early queries, and early keys have more queries than late keys.
# The largest degree is 7.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# A Laplacian needs a symmetric graph, so each edge counts in both directions here. The gap
# decreases slowly with the length.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    print(f'{n} tokens: gap {spectrum(pattern.build(n)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Every distance of up to 63 is a sum of at most 6 powers of two. So in 6 layers every earlier key
# reaches a query: 32.5 keys on average, and 64 keys for the last query.
print(receptive_field(graph, hops=6).mean(axis=1))
draw.receptive_field(receptive_field(graph, hops=7))

# %%
# Time compared with full attention
# ---------------------------------
# For n tokens, the number of edges grows as n log n. Full attention is not causal in this figure.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'LogSparse': along, 'full attention': full})
