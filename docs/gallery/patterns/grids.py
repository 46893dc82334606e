r"""
Windows over images and videos
==============================

``Neighborhood`` attends to the nearest keys of a grid, as neighborhood attention does, and
``ShiftedWindows`` to the box that the query lies in, as Swin Transformers do. Both take any number
of axes; the sequence holds them in the order of ``Tensor.flatten``.
"""

import matplotlib.pyplot as plt

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import draw
from graphattn.patterns import Neighborhood, ShiftedWindows, SlidingWindow

SIDE = 12
near = Neighborhood(5, inner=(SIDE,))
near

# %%
# The keys of three queries of an image: at the border the window moves inwards, and with a dilation
# it takes every second key. A box of Swin Transformers is the same for all queries in it.
ways = {'5 x 5': near, '3 x 3, dilation 2': Neighborhood(3, (SIDE,), dilation=2),
        'causal in both axes': Neighborhood(5, (SIDE,), causal=True),
        'boxes of 4, shifted by 2': ShiftedWindows(4, (SIDE,), shift=2)}
figure, panels = plt.subplots(3, len(ways), figsize=(9, 7), layout='constrained')
for column, (name, pattern) in zip(panels.T, ways.items()):
    mask = pattern.build(SIDE**2).to_mask().view(SIDE, SIDE, SIDE, SIDE)
    for axes, (row, place) in zip(column, ((1, 1), (6, 6), (10, 4))):
        image = mask[row, place].int()
        image[row, place] = 2
        axes.imshow(image, cmap='Blues')
        axes.set(xticks=[], yticks=[])
    column[0].set_title(name, fontsize='small')

# %%
# As a mask over the sequence, bands of bands.
draw.mask(near.build(SIDE**2))

# %%
# The edges of a smaller image, of 5 x 5.
small = Neighborhood(3, inner=(5,)).build(25)
draw.bipartite(small)

# %%
# Every query has 9 keys. A key near the border, but not at it, has more queries than others.
draw.degrees(small)

# %%
# Spectrum and gap
# ----------------
# A window of as many keys over the sequence mixes an image far more slowly than one over the grid.
draw.spectrum(spectrum(near.build(SIDE**2)).values)
for each in (near, ShiftedWindows(5, (SIDE,)), SlidingWindow(12)):
    print(f'{each}: gap {spectrum(each.build(SIDE**2)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# Two tokens of a window apart are one layer apart, in either direction of the image.
draw.receptive_field(receptive_field(near.build(SIDE**2), hops=4))

# %%
# A video: each token attends to 2 frames, this one and the one before, and to 3 x 3 tokens of each.
video = Neighborhood((2, 3, 3), inner=(8, 8), causal=(True, False, False))
graph = video.build(4 * 64)
print(graph, (graph.key // 64 - graph.query // 64).unique())

# %%
# Time beside full attention
# --------------------------
# A neighborhood of 7 x 7 over images of 16 x 16, 32 x 32 and 64 x 64.
along, full = {}, {}
for n in (256, 1024, 4096):
    result = speed(Neighborhood(7, (round(n**.5),)).build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'7 x 7 neighborhood': along, 'full attention': full})
