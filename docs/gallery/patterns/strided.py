r"""
Strided and fixed, of Sparse Transformers
=========================================

With ``Strided`` a query attends to the positions around it and to every ``stride``-th position.
With ``Fixed`` a query attends to its block and to the last position of every block. If the stride
is the square root of the length n, the graph has about :math:`n \sqrt n` edges.
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
# The figure shows the masks of both patterns, in one batch of two segments.
draw.segments(both, ['strided', 'fixed'])

# %%
# The drawing shows the edges of the strided pattern.
draw.bipartite(graph)

# %%
# Queries in the middle of the sequence have the most keys around them.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The gaps of both patterns are much larger than the gap of a window.
draw.spectrum(spectrum(graph).values)
for each in (pattern, patterns.Fixed(block=8), patterns.SlidingWindow(7)):
    print(f'{each}: gap {spectrum(each.build(64)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# In two layers, all keys reach a query. With the causal pattern of the paper, all earlier keys
# reach a query in two layers.
causal = patterns.Strided(stride=8, causal=True).build(64)
for name, each in (('both sides', graph), ('causal', causal)):
    print(name, receptive_field(each, hops=3).mean(axis=1))
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# For each length, the stride is the rounded square root of the length.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(patterns.Strided(round(n**0.5)).build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'strided': along, 'full attention': full})
