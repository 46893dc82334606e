"""
HopMaskSource: distances that each head learns
==============================================

The tokens are the nodes of a batch of graphs. Each head learns at which hop distances along the
edges of the data nodes attend to one another, as SparseBERT's heads learn masks over positions.
"""

import networkx as nx
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import from_networkx

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw
from graphattn.layers import GraphAttention
from graphattn.sources import HopMaskSource

batch = Batch.from_data_list([from_networkx(nx.grid_2d_graph(6, 8)),
                              from_networkx(nx.random_labeled_tree(40, seed=0))])
source = HopMaskSource(heads=2, max_hops=4).eval()
source.logit.data = torch.tensor([[1., -1., -1., -1.], [-1., 1., -1., 1.]])
tokens, layer = torch.randn(batch.num_nodes, 16), GraphAttention(16, 2)
graph = layer(tokens, batch.ptr, source=source | batch.edge_index, return_graph=True)[1]
graph

# %%
# Head 0 attends to neighbours, and head 1 to nodes two and four hops away. The batch has a segment
# for each head and each graph.
draw.segments(graph, ['grid', 'tree', 'grid', 'tree'])

# %%
# The drawing shows the edges of head 1 on the grid. Nodes always attend to themselves.
grid = graph.segment(0, 1, heads=2)
draw.bipartite(grid)

# %%
# Nodes at the border of the grid have fewer nodes at each distance.
draw.degrees(grid)

# %%
# Learning
# --------
# In training, each head draws new distances in each forward pass, and the gradient of the loss
# reaches the logits of the distances.
source.train()
optimizer = torch.optim.Adam([*source.parameters(), *layer.parameters()], lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    out = layer(tokens, batch.ptr, source=source | batch.edge_index)
    out.square().mean().backward()
    optimizer.step()
print(source.logit.sigmoid().detach().round(decimals=2))

# %%
# Spectrum and gap
# ----------------
# Edges over even distances split the grid into two parts, like the colours of a chessboard.
draw.spectrum(spectrum(grid).values)
print(f'gap {spectrum(grid).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Half of the nodes never reach a query, because they are in the other part.
draw.receptive_field(receptive_field(grid, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The figure is for random trees, whose nodes attend to nodes up to two hops away.
along, full = {}, {}
source = HopMaskSource(heads=1, max_hops=2).eval()
source.logit.data.fill_(1.)
for n in (512, 1024, 2048, 4096):
    edges = BipartiteGraph.from_networkx(nx.random_labeled_tree(n, seed=0))
    q = torch.randn(n, 1, 4)
    result = speed((source | edges)(q, q, torch.tensor([0, n])))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'along the graph': along, 'full attention': full})
