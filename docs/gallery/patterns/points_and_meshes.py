r"""
Points, meshes and the sphere
=============================

This page builds graphs from the triangles of a mesh, from neighbouring pixels of HEALPix (a grid on
the sphere), and from near points of a cloud. A simulation or a library returns such edges as arrays
of integers, from which you can build a graph.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy import sparse
from scipy.spatial import ConvexHull

from analysis.diffusion import receptive_field
from analysis.spectrum import spectrum
from analysis.speed import speed
from graphattn import BipartiteGraph, draw


def sphere(num_points):
    """Return evenly spaced points [num_points, 3] of the sphere, on a spiral."""
    z = 1 - (2 * np.arange(num_points) + 1) / num_points
    longitude = np.arange(num_points) * np.pi * (3 - 5**0.5)
    around = np.sqrt(1 - z**2)
    return np.stack([around * np.cos(longitude), around * np.sin(longitude), z], axis=1)


# %%
# The triangles of a mesh are an array ``[num_faces, 3]`` of indices of points. Each side of a
# triangle becomes an edge in both directions. If two triangles share a side, the graph merges the
# edges.
def along_mesh(faces, num_points):
    faces = torch.as_tensor(faces).long()
    sides = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    edge_index = torch.cat([sides, sides.flip(1)]).t()
    return BipartiteGraph.from_edge_index(edge_index, num_points).with_self_loops()


points = sphere(200)
mesh = along_mesh(ConvexHull(points).simplices, len(points))
mesh


# %%
# The neighbours of HEALPix's pixels are an array ``[num_pixels, 8]``. A few pixels have only seven
# neighbours, and -1 fills up their rows. With healpy, the array is
# ``healpy.get_all_neighbours(nside, np.arange(12 * nside**2), nest=True).T``. The code here
# computes the array from the definition: neighbours have a corner in common.
def on_sphere(face, x, y):
    """Map coordinates from 0 to 1 in one of HEALPix's 12 faces to points of the sphere."""
    ring = np.repeat([2, 3, 4], 4)[face] - x - y
    width = np.minimum(np.minimum(ring, 4 - ring), 1)
    z = np.where(ring < 1, 1 - width**2 / 3,
                 np.where(ring > 3, width**2 / 3 - 1, 2 / 3 * (2 - ring)))
    turn = np.array([1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7])[face] + (x - y) / np.maximum(width, 1e-9)
    around = np.sqrt(np.maximum(1 - z**2, 0))
    return np.stack([around * np.cos(turn * np.pi / 4), around * np.sin(turn * np.pi / 4), z], -1)


def pixels(nside):
    """Return the centres and the neighbours of the pixels, face by face."""
    face, x, y = (axis.ravel() for axis in np.mgrid[:12, :nside, :nside])
    corners = [on_sphere(face, (x + i) / nside, (y + j) / nside) for i in (0, 1) for j in (0, 1)]
    _, corner = np.unique(np.concatenate(corners).round(6) + 0., axis=0, return_inverse=True)
    pixel = np.tile(np.arange(face.size), 4)
    has_corner = sparse.csr_array((np.ones(corner.size), (pixel, corner.ravel())))
    shared = sparse.lil_array(has_corner @ has_corner.T)
    neighbours = np.full((face.size, 8), -1)
    for each, others in enumerate(shared.rows):
        others = [other for other in others if other != each]
        neighbours[each, :len(others)] = others
    return on_sphere(face, (x + 0.5) / nside, (y + 0.5) / nside), neighbours


centres, neighbours = pixels(4)
healpix = BipartiteGraph.from_topk(torch.as_tensor(neighbours), len(centres)).with_self_loops()
healpix

# %%
# In a cloud, a point attends to its 8 nearest points, or to all points within a radius. The method
# ``from_nearest`` counts the point itself too, hence the 9.
cloud = np.random.default_rng(0).random((200, 2))
nearest = BipartiteGraph.from_nearest(torch.as_tensor(cloud), 9)
within = BipartiteGraph.from_radius(torch.as_tensor(cloud), 0.12)


# %%
# The figure shows all edges of the four graphs in grey, and the edges of one query in blue. Of a
# sphere, only the front half is drawn.
def show(axes, points, graph, query):
    depth = points[:, 2] if points.shape[1] == 3 else np.ones(len(points))
    for key, of in zip(graph.key.tolist(), graph.query.tolist()):
        if key != of and depth[key] > 0 and depth[of] > 0:
            color, order = ('C0', 2) if of == query else ('0.8', 1)
            axes.plot(*points[[key, of], :2].T, color=color, lw=2 if of == query else 0.7,
                      zorder=order)
    axes.plot(*points[depth > 0, :2].T, 'o', color='0.4', markersize=2, zorder=3)
    axes.plot(*points[query, :2], 'o', color='C0', markersize=6, zorder=4)
    axes.set(xticks=[], yticks=[], aspect='equal')


figure, panels = plt.subplots(1, 4, figsize=(12, 3.4), layout='constrained')
for axes, (name, (at, graph)) in zip(panels, {
        'mesh of triangles': (points, mesh), 'HEALPix': (centres, healpix),
        '8 nearest points': (cloud, nearest), 'within a radius': (cloud, within)}.items()):
    middle = np.array([0.3, 0.2, 0.9]) if at.shape[1] == 3 else np.array([0.65, 0.25])
    show(axes, at, graph, int(((at - middle)**2).sum(axis=1).argmin()))
    axes.set_title(name, fontsize='medium')

# %%
# In the mask of HEALPix, pixels are numbered face by face. Neighbours in one face have near
# numbers.
draw.mask(healpix)

# %%
# The smallest grid of HEALPix whose pixels have 8 neighbours has 48 pixels.
_, neighbours = pixels(2)
small = BipartiteGraph.from_topk(torch.as_tensor(neighbours), 48).with_self_loops()
draw.bipartite(small)

# %%
# Most pixels have 9 keys: themselves and 8 neighbours. Pixels where three faces meet have 8 keys.
draw.degrees(small)

# %%
# Spectrum and gap
# ----------------
# The smallest eigenvalues come in groups of 1, 3 and 5, as the eigenvalues of spherical harmonics
# do. The faces of HEALPix split the third group in two.
values = spectrum(healpix).values
draw.spectrum(values)
print(values[:9].round(3))

# %%
# Receptive field over layers
# ---------------------------
# In each layer, the keys that reach a pixel grow by one ring of pixels.
draw.receptive_field(receptive_field(healpix, hops=6))

# %%
# Time compared with full attention
# ---------------------------------
# The figure is for meshes of 512 to 4,096 points.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(along_mesh(ConvexHull(sphere(n)).simplices, n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'mesh': along, 'full attention': full})
