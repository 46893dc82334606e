r"""
Windows over images and videos
==============================

With ``Neighborhood`` a query attends to the nearest keys of a grid, as in neighborhood attention.
With ``ShiftedWindows`` a query attends to the keys in the same box of the grid, as in Swin
Transformers. Both patterns support any number of axes. The sequence contains the points of the grid
in the order of ``Tensor.flatten``.
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
# Each row of the figure shows one query of an image (dark) and its keys (light), for four patterns.
# At the border of the image, a neighborhood moves inwards. With dilation 2 it contains every second
# key. All queries in the same box of ``ShiftedWindows`` have the same keys.
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
# The mask over the whole sequence has bands that consist of smaller bands.
draw.mask(near.build(SIDE**2))

# %%
# The drawing shows the edges of a smaller image, of 5 x 5 points.
small = Neighborhood(3, inner=(5,)).build(25)
draw.bipartite(small)

# %%
# Every query of the smaller image has 9 keys. A key near the border, but not at the border, has
# more queries than other keys.
draw.degrees(small)

# %%
# Spectrum and gap
# ----------------
# A window over the grid has a much larger gap than a window over the sequence with as many keys, so
# it mixes an image much faster.
draw.spectrum(spectrum(near.build(SIDE**2)).values)
for each in (near, ShiftedWindows(5, (SIDE,)), SlidingWindow(12)):
    print(f'{each}: gap {spectrum(each.build(SIDE**2)).lambda_2:.4f}')

# %%
# Receptive field over layers
# ---------------------------
# In each layer, values travel as far as a window reaches, along both axes of the image.
draw.receptive_field(receptive_field(near.build(SIDE**2), hops=4))

# %%
# In this video each token attends to 3 x 3 tokens of its own frame and of the frame before.
video = Neighborhood((2, 3, 3), inner=(8, 8), causal=(True, False, False))
graph = video.build(4 * 64)
print(graph, (graph.key // 64 - graph.query // 64).unique())

# %%
# Time compared with full attention
# ---------------------------------
# The figure is for a neighborhood of 7 x 7 on images of 16 x 16, 32 x 32 and 64 x 64 points.
along, full = {}, {}
for n in (256, 1024, 4096):
    result = speed(Neighborhood(7, (round(n**.5),)).build(n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'7 x 7 neighborhood': along, 'full attention': full})
