"""
StructureSource: a pattern and edges of the data
================================================

The tokens are the nodes of a batch of graphs, as in PyG. They attend along the edges of their graph
and, like Exphormer, along an expander and to global tokens.
"""

import networkx as nx
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import from_networkx

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw, patterns
from graphattn.layers import GraphAttention
from graphattn.sources import PatternSource

batch = Batch.from_data_list([from_networkx(nx.grid_2d_graph(6, 8)),
                              from_networkx(nx.random_labeled_tree(40, seed=0))])
source = PatternSource('exphormer') | batch.edge_index
tokens = torch.randn(batch.num_nodes, 16)
graph = GraphAttention(16, 2)(tokens, batch.ptr, source=source, return_graph=True)[1]
graph

# %%
# The batch has a segment for each of its two graphs: a grid of 6 x 8 nodes and a tree.
draw.segments(graph, ['grid', 'tree'])

# %%
# The drawing shows the edges of the grid together with the edges of the pattern.
grid, tree = graph.unbatch()
draw.bipartite(grid)

# %%
# Token 0 has the most edges, because it is global.
draw.degrees(grid)

# %%
# Spectrum and gap
# ----------------
# The edges of the pattern widen the gap of both graphs.
draw.spectrum(spectrum(grid).values)
for name, data, each in zip(('grid', 'tree'), batch.to_data_list(), (grid, tree)):
    alone = BipartiteGraph.from_edge_index(data.edge_index, data.num_nodes)
    print(f'{name}: gap {spectrum(alone).lambda_2:.4f} alone, '
          f'{spectrum(each).lambda_2:.4f} with the pattern')

# %%
# Receptive field over layers
# ---------------------------
# In two layers, all tokens reach a query through the global token.
draw.receptive_field(receptive_field(grid, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The figure is for random trees.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    edges = BipartiteGraph.from_networkx(nx.random_labeled_tree(n, seed=0))
    result = speed(edges | patterns.get('exphormer').build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'along the graph': along, 'full attention': full})
