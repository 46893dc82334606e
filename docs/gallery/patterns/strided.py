r"""
Strided and fixed, of Sparse Transformers
=========================================

``Strided`` attends to the positions around the query and to every ``stride``-th position, ``Fixed``
to the query's block and to the last position of every block. If the stride is the square root of
the length, there are about :math:`n \sqrt n` edges.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw, patterns

pattern = patterns.Strided(stride=8)
graph = pattern.build(64)
both = BipartiteGraph.batch([graph, patterns.Fixed(block=8).build(64)])
pattern

# %%
# Both side by side, in one batch of two segments.
draw.segments(both, ['strided', 'fixed'])

# %%
# The strided pattern.
draw.bipartite(graph)

# %%
# Queries in the middle have the most keys around them.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# Both gaps are much larger than the gap of a window.
draw.spectrum(spectrum(graph).values)
for each in (pattern, patterns.Fixed(block=8), patterns.SlidingWindow(7)):
    print(f'{each}: gap {spectrum(each.build(64)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Two layers reach all tokens. In the causal form, as in the paper, they reach all earlier keys.
causal = patterns.Strided(stride=8, causal=True).build(64)
for name, each in (('both sides', graph), ('causal', causal)):
    print(name, receptive_field(each, hops=3).mean(axis=1))
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The stride is the square root of the length, rounded.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(patterns.Strided(round(n**0.5)).build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'strided': along, 'full attention': full})
