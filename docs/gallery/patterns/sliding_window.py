"""
Sliding window
==============

Each query attends to the keys that are at most ``radius`` places away.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.SlidingWindow(radius=4)
graph = pattern.build(64)
pattern

# %%
# The mask is a band along the diagonal.
draw.mask(graph)

# %%
# Each query is connected to the keys around it.
draw.bipartite(graph)

# %%
# Degrees are equal except at the ends of the sequence, where the window is cut off.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The spectral gap is the second eigenvalue of the normalised Laplacian. The larger it is, the
# faster information mixes. The gap of a window falls to about a quarter for twice the tokens.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    print(f'{n} tokens: gap {spectrum(pattern.build(n)).lambda_2:.2e}')

# %%
# Receptive field over layers
# ---------------------------
# Each layer reaches one radius further on both sides. A query in the middle needs 8 layers for
# the 32 tokens on either side of it, and one at an end needs 16 for the 63 others.
draw.receptive_field(receptive_field(graph, hops=16))

# %%
# Time compared with full attention
# ---------------------------------
# The number of edges grows linearly with the number of tokens, the number of pairs quadratically.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'sliding window': along, 'full attention': full})
