"""
ContentClusterSource: clusters by content
=========================================

The nearest centroid decides the cluster of a query and of a key, and a table decides which clusters
of queries attend to which clusters of keys. The edges differ from input to input. In dense models,
:func:`graphattn.hugging_face.profile` finds centroids and tables.
"""

import torch

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw
from graphattn.sources import ClusterKeys, ContentClusterSource, HeadClusters

torch.manual_seed(0)
centroids = 4 * torch.eye(8, 16)
attends = torch.eye(8, dtype=torch.bool).roll(1, dims=0)  # kind 1 to kind 0, kind 2 to kind 1, ...
clusters = HeadClusters(ClusterKeys(9, 8), centroids, centroids, attends)
source = ContentClusterSource([clusters], head_channels=16)
kind = torch.randint(8, [64])  # of each token
tokens = (centroids[kind] + torch.randn(64, 16)).unsqueeze(1)
graph = source(tokens, tokens, torch.tensor([0, 64]))
graph

# %%
# A query also attends to itself. The queries of a cluster have the same other keys.
draw.mask(graph)

# %%
# If the tokens are sorted by kind, the edges form rectangles.
order = kind.argsort(stable=True)
draw.mask(graph.reorder(order))

# %%
# The bipartite form shows which kind attends to which.
draw.bipartite(graph.reorder(order))

# %%
# Degrees are the sizes of clusters.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# Each kind attends to the one before it, so the kinds form a ring.
draw.spectrum(spectrum(graph).values)
result = spectrum(graph)
print(f'{result.num_components} components, gap {result.lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Each layer adds the tokens of one more kind.
draw.receptive_field(receptive_field(graph, hops=8))

# %%
# Time compared with full attention
# ---------------------------------
# An eighth of the pairs are edges at each length, so the number of edges grows with the square of
# the length. The times do not include assigning tokens to clusters.
sparse, full = {}, {}
for n in (256, 512, 1024):
    x = (centroids[torch.randint(8, [n])] + torch.randn(n, 16)).unsqueeze(1)
    result = speed(source(x, x, torch.tensor([0, n])))
    sparse[n], full[n] = result.seconds, result.seconds_full
draw.times({'clusters by content': sparse, 'full attention': full})
