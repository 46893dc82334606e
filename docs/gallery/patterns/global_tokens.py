"""
Global tokens
=============

Global tokens attend to all keys, and all queries attend to the global tokens. Here every token also
attends to itself.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.GlobalTokens(2) | patterns.SlidingWindow(0)
graph = pattern.build(64)
pattern

# %%
# The mask consists of two rows, two columns and the diagonal.
draw.mask(graph)

# %%
# All lines except the vertical ones begin or end at the first two tokens.
draw.bipartite(graph)

# %%
# The first two tokens have 64 keys each, and the other tokens have 3.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# Any two tokens are at most two edges apart, and the gap is the same at every length. The pattern
# ``Star`` has one global token and a window of radius 1. Its gap hardly changes with the length.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    gaps = [spectrum(each.build(n)).lambda_2 for each in (pattern, patterns.Star())]
    print(f'{n} tokens: gap {gaps[0]:.4f}, of Star {gaps[1]:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Two layers reach all tokens. The first layer sends all values to the global tokens, and the second
# layer sends the values on to all tokens.
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The graph has about 5 edges for each token. They are not spread evenly, because each of the two
# global queries has n keys.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'global tokens': along, 'full attention': full})
