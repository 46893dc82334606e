r"""
Points, meshes and the sphere
=============================

Attention along the triangles of a mesh, between the pixels of HEALPix, and between near points of a
cloud. A simulation or a library gives such edges as arrays of integers, and a graph takes them.
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
# A mesh comes as triangles, an array ``[num_faces, 3]`` of points. Each side is an edge in both
# directions; sides of two triangles are merged.
def along_mesh(faces, num_points):
    faces = torch.as_tensor(faces).long()
    sides = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    edge_index = torch.cat([sides, sides.flip(1)]).t()
    return BipartiteGraph.from_edge_index(edge_index, num_points).with_self_loops()


points = sphere(200)
mesh = along_mesh(ConvexHull(points).simplices, len(points))
mesh


# %%
# Neighbours in HEALPix are an array ``[num_pixels, 8]``, in which -1 stands for the eighth that a
# few pixels lack: ``healpy.get_all_neighbours(nside, np.arange(12 * nside**2), nest=True).T``, if
# healpy is installed. Here it follows from the definition: neighbours have a corner in common.
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
# Edges of a point cloud: the 8 nearest points, or all within a radius.
cloud = np.random.default_rng(0).random((200, 2))
nearest = BipartiteGraph.from_nearest(torch.as_tensor(cloud), 9)
within = BipartiteGraph.from_radius(torch.as_tensor(cloud), 0.12)


# %%
# All edges, and in blue those of one query. Of spheres, the half in front is drawn.
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
# The mask of HEALPix, face by face: neighbours have near numbers, unless they are in other faces.
draw.mask(healpix)

# %%
# Its smallest grid with 8 neighbours has 48 pixels.
_, neighbours = pixels(2)
small = BipartiteGraph.from_topk(torch.as_tensor(neighbours), 48).with_self_loops()
draw.bipartite(small)

# %%
# A pixel has 9 keys with itself, and 8 where three faces meet.
draw.degrees(small)

# %%
# Spectrum and gap
# ----------------
# As those of spherical harmonics, the smallest eigenvalues come in groups of 1, 3 and 5. The faces
# of HEALPix split the third group in two.
values = spectrum(healpix).values
draw.spectrum(values)
print(values[:9].round(3))

# %%
# Receptive field over layers
# ---------------------------
# The neighbourhood grows by one ring in each layer.
draw.receptive_field(receptive_field(healpix, hops=6))

# %%
# Time compared with full attention
# ---------------------------------
# Meshes of 512 to 4,096 points.
along, full = {}, {}
for n in (512, 1024, 2048, 4096):
    result = speed(along_mesh(ConvexHull(sphere(n)).simplices, n))
    along[n], full[n] = result.seconds, result.seconds_full
draw.times({'mesh': along, 'full attention': full})
