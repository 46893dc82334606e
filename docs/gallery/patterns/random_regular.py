"""
Random regular graphs, expanders
================================

Every query attends to ``degree`` keys, and ``degree`` queries attend to every key. Random regular
graphs are expanders: they have few edges, and their gap does not vanish with the length.
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
# Four edges in each row and in each column.
draw.mask(graph)

# %%
# Every token has edges, and none is a hub.
draw.bipartite(graph)

# %%
# All degrees are 4, in both directions.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# ``analysis.expander`` compares the undirected graph, of degree 8 or nearly 8, with theoretical
# bounds.
draw.spectrum(spectrum(graph).values)
for n in (64, 128, 256):
    result = expander(pattern.build(n, seed=0))
    print(f'{n} tokens: gap {result.lambda_2:.4f}, diameter {result.diameter}, Cheeger '
          f'constant from {result.cheeger_below:.3f} to {result.sweep_conductance:.3f}')

# %%
# Receptive field over layers
# ---------------------------
# After k layers at most :math:`1 + 4 + \dots + 4^k` keys reach a query, and the first layers come
# close to it. The preset ``'exphormer'`` adds a global token, and two layers are enough.
for name, each in (('regular', pattern), ('exphormer', patterns.get('exphormer'))):
    print(name, receptive_field(each.build(64, seed=0), hops=4).mean(axis=1).round(1))
draw.receptive_field(receptive_field(graph, hops=6))

# %%
# Time compared with full attention
# ---------------------------------
# Four edges for each token.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'random regular': along, 'full attention': full})
