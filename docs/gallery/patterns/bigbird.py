"""
BigBird
=======

BigBird attends along a window of three blocks, global blocks and random blocks. A block of the
preset has 64 tokens. Here a block has 4 tokens, so that the drawings show single blocks.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.get('bigbird', block=4, num_global=1, num_random=2)
graph = pattern.build(64, seed=0)
pattern

# %%
# All edges of the mask are in squares of 4 x 4 pairs.
draw.mask(graph)

# %%
# Edges connect blocks of keys to blocks of queries.
draw.bipartite(graph)

# %%
# The queries of a block have the same keys.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# For each length, new random blocks are drawn from the same seed.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    print(f'{n} tokens: gap {spectrum(pattern.build(n, seed=0)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Through the global block, every token reaches every other token in two layers, as in Longformer.
# Without the global block, random blocks need a few more layers.
without = patterns.get('bigbird', block=4, num_global=0, num_random=2).build(64, seed=0)
for name, each in (('BigBird', graph), ('without global blocks', without)):
    print(name, receptive_field(each, hops=4).mean(axis=1).round(1))
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# Here a block has 16 tokens.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(patterns.get('bigbird', block=16).build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'BigBird': along, 'full attention': full})
