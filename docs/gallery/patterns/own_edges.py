"""
Your own edges
==============

Build a graph from networkx, from ``edge_index``, from a mask, from scipy or from the keys that a
search has found. Here it is Zachary's karate club: the friendships of its 34 members.
"""

import networkx as nx

from analysis.adjacency import symmetric_adjacency
from analysis.diffusion import receptive_field
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
# Each member is a key and a query.
draw.bipartite(graph)

# %%
# The two leaders, tokens 0 and 33, have the most friends.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The second eigenvector splits the club in two, almost as it actually split.
draw.spectrum(spectrum(graph).values)
side = Laplacian(symmetric_adjacency(graph)).smallest(2).vectors[:, 1] > 0
officer = [friends.nodes[member]['club'] == 'Officer' for member in friends]
agree = sum(a == b for a, b in zip(side, officer))
print(f'{max(agree, 34 - agree)} of 34 members are on the side that they chose')

# %%
# Receptive field over layers
# ---------------------------
# The graph is small: 5 layers send each member's value to all others.
draw.receptive_field(receptive_field(graph, hops=6))

# %%
# Time compared with full attention
# ---------------------------------
# A graph of 34 tokens is too small to be faster. Larger graphs of this kind, in which few members
# have most of the friends, are drawn by preferential attachment.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(nx.barabasi_albert_graph(n, 4, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'preferential attachment': along, 'full attention': full})
