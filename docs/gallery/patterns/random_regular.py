"""
Random regular graphs, expanders
================================

With ``RandomRegular`` every query attends to ``degree`` keys, and ``degree`` queries attend to
every key. Random regular graphs are expanders: they have few edges, but their spectral gap does
not shrink towards 0 as the sequence grows.
"""

from analysis.diffusion import receptive_field
from analysis.expander import expander
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns

pattern = patterns.RandomRegular(degree=4)
graph = pattern.build(64, seed=0)
pattern

# %%
# Each row and each column of the mask has four edges.
draw.mask(graph)

# %%
# Every token has edges, and no token is a hub.
draw.bipartite(graph)

# %%
# All degrees are 4, in both directions.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# ``analysis.expander`` measures the undirected graph, whose degrees are 8 or nearly 8, and computes
# theoretical bounds.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    result = expander(pattern.build(n, seed=0))
    print(f'{n} tokens: gap {result.lambda_2:.4f}, diameter {result.diameter}, Cheeger '
          f'constant from {result.cheeger_below:.3f} to {result.sweep_conductance:.3f}')

# %%
# Receptive field over layers
# ---------------------------
# After k layers at most :math:`1 + 4 + \dots + 4^k` keys reach a query, and the first layers come
# close to this bound. The preset ``'exphormer'`` adds a global token, through which all keys reach
# a query in two layers.
for name, each in (('regular', pattern), ('exphormer', patterns.get('exphormer'))):
    print(name, receptive_field(each.build(64, seed=0), hops=4).mean(axis=1).round(1))
draw.receptive_field(receptive_field(graph, hops=6))

# %%
# Time compared with full attention
# ---------------------------------
# The graph has four edges for each token.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'random regular': along, 'full attention': full})
