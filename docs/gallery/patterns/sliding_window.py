"""
Sliding window
==============

With ``SlidingWindow`` each query attends to the keys that are at most ``radius`` positions away.
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
# Edges connect each query to the keys around it.
draw.bipartite(graph)

# %%
# Degrees are equal except at the ends of the sequence, where the window is cut off.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The spectral gap is the second eigenvalue of the normalised Laplacian. The larger it is, the
# faster information mixes. With twice the tokens, the gap of a window falls to about a quarter.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    print(f'{n} tokens: gap {spectrum(pattern.build(n)).lambda_2:.2e}')

# %%
# Receptive field over layers
# ---------------------------
# Each layer reaches one radius further on both sides. A query in the middle needs 8 layers to reach
# the 32 tokens on either side. A query at an end needs 16 layers to reach the 63 other tokens.
draw.receptive_field(receptive_field(graph, hops=16))

# %%
# Time compared with full attention
# ---------------------------------
# The number of edges grows linearly with the number of tokens. The number of pairs grows
# quadratically.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'sliding window': along, 'full attention': full})
