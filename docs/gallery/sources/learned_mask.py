"""
LearnedMaskSource: a mask learned with the model
================================================

A learned mask has a logit for every distance between two positions, or for every pair (SparseBERT).
In training, masks are drawn from these logits. After training, the mask is frozen.
"""

import torch

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw
from graphattn.functional import edge_attention
from graphattn.sources import LearnedMaskSource

torch.manual_seed(0)
source = LearnedMaskSource(heads=1, size=64, border=False)
ptr = 64 * torch.arange(9)  # eight sequences
tokens = torch.randn(512, 1, 16)
fresh = source(tokens[:64], tokens[:64], ptr[:2])  # for the first one
fresh

# %%
# In this task, the target of each token is the mean of five tokens: the token itself, and the
# tokens 1 and 5 positions away. All edges have equal weights, so only the mask is learned. The
# penalty in the loss counts the edges of the mask.
same = torch.zeros_like(tokens)
optimizer = torch.optim.Adam(source.parameters(), lr=0.1)
for _ in range(100):
    tokens = torch.randn(512, 1, 16)
    drawn = source(same, same, ptr)
    out = edge_attention(same, same, tokens, drawn, **source.logit_terms(drawn))
    tokens = tokens.view(8, 64, 16)
    wanted = sum(tokens.roll(shift, 1) for shift in (-5, -1, 0, 1, 5)) / 5
    loss = (out.view(8, 64, 16) - wanted)[:, 5:-5].square().mean() + 1e-4 * drawn.norm()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
graph = source.eval()(same[:64], same[:64], ptr[:2])
print(f'density {fresh.density():.1%} before, {graph.density():.1%} after')
print('distances that are on:', (source.logit[0] > 0).nonzero().flatten().tolist())

# %%
# ``freeze`` returns a ``Mask``, which is a pattern like any other.
(mask,) = source.freeze()
draw.mask(mask.build(64))

# %%
# Edges connect each query to five keys.
draw.bipartite(graph)

# %%
# Queries at the ends of the sequence have fewer keys.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The code prints the gap of a mask that was drawn before training, and the gap of the learned mask.
draw.spectrum(spectrum(graph).values)
for name, each in (('before', fresh), ('after', graph)):
    print(f'{name}: gap {spectrum(each).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Each layer reaches five positions further on both sides.
draw.receptive_field(receptive_field(graph, hops=14))

# %%
# Time compared with full attention
# ---------------------------------
# The figure compares a batch of up to 64 sequences, each with the learned mask, with full attention
# on one sequence of the same total number of tokens.
along, full = {}, {}
for sequences in (8, 16, 32, 64):
    n = 64 * sequences
    repeated = BipartiteGraph.batch([graph] * sequences)
    result = speed(BipartiteGraph.from_edge_index(repeated.edge_index, n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'learned mask': along, 'full attention': full})
