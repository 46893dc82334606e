"""
Your own edges
==============

You can build a graph from networkx, from ``edge_index``, from a mask, from scipy or from the keys
that a search has found. ``EdgeList`` makes a pattern of such edges, which all sequences share by
their positions. The graph on this page is Zachary's karate club, the friendships of 34
members.
"""

import networkx as nx

from analysis.diffusion import receptive_field
from analysis.graphs import symmetric_adjacency
from analysis.spectrum import Laplacian, spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw

friends = nx.karate_club_graph()
graph = BipartiteGraph.from_networkx(friends)
graph

# %%
# An undirected edge is two directed edges, so the mask is symmetric.
draw.mask(graph)

# %%
# Each member of the club is both a key and a query.
draw.bipartite(graph)

# %%
# The two leaders, tokens 0 and 33, have the most friends.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The club later split in two. The second eigenvector predicts almost every member's side.
draw.spectrum(spectrum(graph).values)
side = Laplacian(symmetric_adjacency(graph)).smallest(2).vectors[:, 1] > 0
officer = [friends.nodes[member]['club'] == 'Officer' for member in friends]
agree = sum(a == b for a, b in zip(side, officer))
print(f'{max(agree, 34 - agree)} of 34 members are on the side that they chose')

# %%
# Receptive field over layers
# ---------------------------
# The graph is small: in 5 layers the value of each member reaches all other members.
draw.receptive_field(receptive_field(graph, hops=6))

# %%
# Time compared with full attention
# ---------------------------------
# Attention along a graph of 34 tokens is not faster than full attention. So the figure is for
# larger graphs in which few members have most of the friends, drawn by preferential attachment.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(nx.barabasi_albert_graph(n, 4, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'preferential attachment': along, 'full attention': full})
