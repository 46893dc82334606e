"""
Diffuser
========

Diffuser attends along overlapping blocks (``OverlappingBlocks``), global tokens and random keys,
and values travel several hops along these edges. The preset has a window of 64, 64 global tokens
and 64 random keys. Here there are 8, 4 and 4.
"""

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.get('diffuser', window=8, num_global=4, num_random=4)
graph = pattern.build(64, seed=0)
pattern

# %%
# The global tokens are drawn at random too, and can be anywhere in the sequence.
draw.mask(graph)

# %%
# The graph has so many edges that only the density of the lines is visible.
draw.bipartite(graph)

# %%
# Every query has the keys of its block and its random keys. The peaks are the global tokens.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The paper's reason for random edges is that they widen the spectral gap. The code prints the gap
# of the pattern without random edges, without global tokens and without both.
draw.spectrum(spectrum(graph).values)
for parts in ({'num_random': 4, 'num_global': 4}, {'num_random': 0, 'num_global': 4},
              {'num_random': 4, 'num_global': 0}, {'num_random': 0, 'num_global': 0}):
    result = spectrum(patterns.get('diffuser', window=8, **parts).build(64, seed=0))
    print(f'{parts}: gap {result.lambda_2:.4f}')
repo = patterns.get('diffuser_repo', window=8, num_global=4, num_random=4, size=64)
print(f'as the code of the authors draws it: gap {spectrum(repo.build(64, seed=0)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Several hops in one layer reach as far as the same number of layers with one hop.
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The figure compares one hop with five hops along the same edges. Here the window is 32, and there
# are 16 global tokens and 16 random keys.
one, five, full = {}, {}, {}
for n in (512, 1024, 2048, 4096):
    larger = patterns.get('diffuser', window=32, num_global=16, num_random=16)
    longer = larger.build(n, seed=0)
    result = speed(longer)
    one[n], full[n] = result.seconds, result.seconds_full
    five[n] = speed(longer, hops=5).seconds
draw.times({'one hop': one, 'five hops': five, 'full attention': full})
