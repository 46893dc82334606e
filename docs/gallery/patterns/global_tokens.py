"""
Global tokens
=============

Some tokens attend to all keys, and all queries attend to them. Here every token also attends to
itself.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.GlobalTokens(2) | patterns.SlidingWindow(0)
graph = pattern.build(64)
pattern

# %%
# Two rows, two columns and the diagonal.
draw.mask(graph)

# %%
# All lines but the vertical ones begin or end at the first two tokens.
draw.bipartite(graph)

# %%
# The first two tokens have 64 edges, the others 3.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# Everything is two edges apart, and the gap is the same at every length. That of ``Star``, one
# global token and a window of radius 1, is nearly so.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    gaps = [spectrum(each.build(n)).lambda_2 for each in (pattern, patterns.Star())]
    print(f'{n} tokens: gap {gaps[0]:.4f}, of Star {gaps[1]:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Two layers reach everything: the first takes all to the global tokens, the second from there to
# all.
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time beside full attention
# --------------------------
# There are about 5 edges for each token, but the two global queries alone have n keys each.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'global tokens': along, 'full attention': full})
