"""
Longformer
==========

Longformer attends along a sliding window and global tokens. A task reads the outputs of the global
tokens.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.get('longformer', radius=4, num_global=2)
graph = pattern.build(64)
pattern

# %%
# The preset ``longformer`` is the union of two patterns, so its mask is the union of their masks.
draw.mask(graph)

# %%
# The global tokens are the first ones.
draw.bipartite(graph)

# %%
# The two global tokens attend to all tokens. Each other token attends to its window and to the two
# global tokens.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# With global tokens the gap is larger than the gap of the window alone, and hardly changes with the
# length.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    window = patterns.SlidingWindow(4)
    gaps = [spectrum(each.build(n)).lambda_2 for each in (pattern, window)]
    print(f'{n} tokens: gap {gaps[0]:.4f}, of its window alone {gaps[1]:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Two layers reach all tokens through the global tokens.
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The window of the published models has a radius of 256. Here the radius is 32.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(patterns.get('longformer', radius=32, num_global=2).build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'Longformer': along, 'full attention': full})
