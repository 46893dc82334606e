"""
Dilated window, an example of your own pattern
==============================================

A query of a dilated window attends to every second key around it. ``Offsets`` could list the
distances one by one. To add a pattern of your own, write a frozen dataclass with a method
``edges``. It combines with all other patterns.
"""

from dataclasses import dataclass

import torch

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw, patterns


@dataclass(frozen=True, repr=False)
class Dilated(patterns.Pattern):
    radius: int
    step: int

    def edges(self, num_queries, num_keys, generator):
        places = self.step * torch.arange(-self.radius, self.radius + 1)
        query = torch.arange(num_queries).repeat_interleave(len(places))
        key = query + places.repeat(num_queries)
        return torch.stack([key, query])[:, (0 <= key) & (key < num_keys)]


pattern = Dilated(radius=4, step=2)
graph = pattern.build(64)
pattern

# %%
# The band of the mask is twice as wide as the band of a window of this radius, and every second
# diagonal is empty.
draw.mask(graph)

# %%
# Edges connect even tokens to even tokens, and odd tokens to odd tokens.
draw.bipartite(graph)

# %%
# Degrees are equal except at the ends of the sequence.
draw.degrees(graph)

# %%
# Spectrum and gap
# ----------------
# The first two eigenvalues are 0, because the graph has two components: even and odd tokens, which
# never exchange information. The union with a window of radius 1 has one component.
draw.spectrum(spectrum(graph).values)
joined = pattern | patterns.SlidingWindow(1)
for each in (pattern, joined):
    result = spectrum(each.build(64))
    print(f'{each}: {result.num_components} components, gap {result.lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Without the additional window, at most half of the keys reach a query in any number of layers.
field = receptive_field(graph, hops=12)
most = receptive_field(joined.build(64), hops=12).max()
print(f'at most {field.max()} of 64 keys reach a query; with the window, {most}')
draw.receptive_field(field)

# %%
# Time compared with full attention
# ---------------------------------
# The dilated window has about as many edges as a window of this radius.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(pattern.build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'dilated window': along, 'full attention': full})
