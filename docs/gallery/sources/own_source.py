"""
Your own source: nearest keys
=============================

A source is a module that maps tokens to edges. With the source on this page, each query attends to
the keys whose dot products with the query are highest.
"""

import torch

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw
from graphattn.layers import GraphAttention
from graphattn.sources import GraphSource


class NearestKeys(GraphSource):
    """The ``k`` keys of the highest scores over all heads, for sequences of one length."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, query, key, ptr, *, key_ptr=None, generator=None):
        shape = len(ptr) - 1, int(ptr[1]), -1
        query, key = query.reshape(shape), key.reshape(shape)
        return BipartiteGraph.from_topk((query @ key.mT).topk(self.k).indices)


torch.manual_seed(0)
attention = GraphAttention(16, 2, NearestKeys(6))
tokens, ptr = torch.randn(128, 16), torch.tensor([0, 64, 128])
graph = attention(tokens, ptr, return_graph=True)[1].segment(0)
graph

# %%
# Every row of the mask has six edges. Some columns have many edges, and some have none.
draw.mask(graph)

# %%
# Some keys have many edges, and others have none.
draw.bipartite(graph)

# %%
# All queries have six keys. The degrees of keys vary widely.
degree = graph.out_degree()
print(f'{degree.max()} queries attend to one key, none to {(degree == 0).sum()} of them')
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# A Laplacian needs a symmetric graph, so each edge counts in both directions here.
draw.spectrum(spectrum(graph).values)

# %%
# Receptive field over layers
# ---------------------------
# A key that no query attends to never reaches other tokens, in any number of layers.
field = receptive_field(graph, hops=6)
print(f'after 6 layers {field[-1].mean():.1f} keys reach a query in the mean')
draw.receptive_field(field)

# %%
# Time compared with full attention
# ---------------------------------
# The figure shows the time of attention along the edges, without the time to find the edges. To
# find the edges, the source computes all scores, as full attention does.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    query, key = torch.randn(2, n, 2, 8)
    with torch.no_grad():
        nearest = attention.source(query, key, torch.tensor([0, n]))
    result = speed(nearest)
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'nearest keys': along, 'full attention': full})
