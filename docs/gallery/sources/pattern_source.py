"""
PatternSource: fixed patterns
=============================

A ``PatternSource`` has a pattern for all heads, or a pattern for each head. It builds the edges of
a pattern for the length of every sequence in a batch.
"""

import torch

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns
from graphattn.functional import edge_attention
from graphattn.sources import PatternSource

source = PatternSource([patterns.SlidingWindow(2), patterns.LogSparse(),
                        patterns.GlobalTokens(2) | patterns.RandomKeys(4)])
tokens = torch.randn(112, 3, 16)  # of three heads
ptr = torch.tensor([0, 64, 112])  # two sequences
graph = source(tokens, tokens, ptr)
graph

# %%
# The graph has a segment for each head and each sequence.
titles = [f'head {head}, sequence {number}' for head in range(3) for number in range(2)]
draw.segments(graph, titles, columns=2)

# %%
# The drawing shows the edges of the last head in the first sequence.
head = graph.segment(0, 2, heads=3)
draw.bipartite(head)

# %%
# The figure shows the degrees of the same segment.
draw.degrees(head)

# %%
# Attention received
# ------------------
# If heads share a graph, each head has its own attention weights on the edges of the graph. The
# weights are in the order of the edges.
shared = patterns.get('longformer', radius=4, num_global=2).build(64)
query, key, value = torch.randn(3, 64, 4, 16)
_, weights = edge_attention(2 * query, key, value, shared, return_attention_weights=True)
draw.heads(shared, weights, columns=2)

# %%
# The global tokens receive the most attention.
draw.received_attention(shared, weights)

# %%
# Spectrum and gap
# ----------------
# The figure shows the spectrum of the last head. The code prints the gap of each head.
draw.spectrum(spectrum(head).values)
for number in range(3):
    result = spectrum(graph.segment(0, number, heads=3))
    print(f'head {number}: gap {result.lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# All heads of a layer can read the values of all heads of the layer before. So the field is
# computed for the union of the heads' graphs.
union = graph.segment(0, 0, heads=3) | graph.segment(0, 1, heads=3) | head
draw.receptive_field(receptive_field(union, hops=4))

# %%
# Time compared with full attention
# ---------------------------------
# In this figure, all heads have the third pattern.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(source.patterns[2].build(n, seed=0))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'along the graph': along, 'full attention': full})
