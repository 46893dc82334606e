"""
BlockModelSource: a stochastic block model
==========================================

Each token belongs to each cluster to some degree, and the clusters of a query and a key determine
the probability of the edge between them (SBM-Transformer). The source is trained like any layer.
"""

import torch

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw
from graphattn.samplers import FactorModel, sample_bernoulli
from graphattn.sources import BlockModelSource

torch.manual_seed(0)
source = BlockModelSource(heads=1, head_channels=16, clusters=8)
kind = torch.randint(2, [64])  # of each token
tokens = torch.randn(2, 1, 16)[kind] + 0.1 * torch.randn(64, 1, 16)
ptr = torch.tensor([0, 64])
fresh = source.eval()(tokens, tokens, ptr)
fresh

# %%
# The graph of an untrained block model has about a quarter of the pairs. This code trains the block
# model until tokens of the first kind attend to one another, and no other tokens have edges.
target = torch.outer(kind == 0, kind == 0).float()
optimizer = torch.optim.Adam(source.parameters(), lr=0.02)
for _ in range(80):
    expected = source.block_model(tokens, tokens, ptr).expectation().view(64, 64)
    loss = torch.nn.functional.mse_loss(expected, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
graph = source(tokens, tokens, ptr)
print(f'density {fresh.density():.1%} before, {graph.density():.1%} after, wanted '
      f'{target.mean():.1%}')

# %%
# If the tokens are sorted by kind, the edges after training form a square in the mask.
order = kind.argsort(stable=True)
draw.mask(graph.reorder(order))

# %%
# Tokens of the second kind have no edges, so their output of attention is 0.
draw.bipartite(graph.reorder(order))

# %%
# The figure shows the degrees before training. They vary from draw to draw around their
# expectation.
draw.degrees(fresh)

# %%
# Spectrum and gap
# ----------------
# After training the gap is 0, because every token without edges is a component of its own. Before
# training, the graph has the gap of a dense random graph.
draw.spectrum(spectrum(fresh).values)
for name, each in (('before', fresh), ('after', graph)):
    result = spectrum(each)
    print(f'{name}: {result.num_components} components, gap {result.lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# After training, tokens of the first kind reach one another in one layer, and no token reaches
# tokens of the second kind.
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# The graph of an untrained block model has too many edges to be faster than full attention. If
# tokens form clusters of 32 and attend only to their own cluster, the number of edges grows
# linearly. The times do not include drawing the edges.
dense, clustered, full = {}, {}, {}
for n in (256, 512, 1024):
    source.reset_parameters()
    x = torch.randn(n, 1, 16)
    result = speed(source(x, x, torch.tensor([0, n])))
    dense[n], full[n] = result.seconds, result.seconds_full
    member = torch.nn.functional.one_hot(torch.arange(n) // 32).float()
    mixing = torch.eye(n // 32)
    clustered[n] = speed(sample_bernoulli(FactorModel(member, mixing, member))).seconds
draw.times({'fresh': dense, 'clusters of 32': clustered, 'full attention': full})
