"""
BlockModelSource: a stochastic block model
==========================================

Tokens belong to clusters to some degree, and the clusters of query and key determine the
probability of an edge (SBM-Transformer). The source is trained like any layer.
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
# A fresh model has about a quarter of the pairs. Here it is trained until tokens of the first kind
# attend to one another, and no other tokens have edges.
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
# With tokens sorted by kind, the mask is a square.
order = kind.argsort(stable=True)
draw.mask(graph.reorder(order))

# %%
# Tokens of the second kind have no edges. The output of attention is 0 there.
draw.bipartite(graph.reorder(order))

# %%
# The degrees of a fresh model vary between draws, around the mean of its distribution.
draw.degrees(fresh)

# %%
# Spectrum and gap
# ----------------
# Every token without edges is its own component, so the gap is 0 after training. Before training it
# is the gap of a dense random graph.
draw.spectrum(spectrum(fresh).values)
for name, each in (('before', fresh), ('after', graph)):
    result = spectrum(each)
    print(f'{name}: {result.num_components} components, gap {result.lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# After training, tokens of the first kind reach one another in one layer, and nothing reaches the
# others.
draw.receptive_field(receptive_field(graph, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# A fresh model has too many edges to be faster. If tokens form clusters of 32 that only attend to
# themselves, the number of edges grows linearly. The time of drawing is not included.
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
