"""Times of attention along meshes of the sphere, compared with the Triton kernel of ECMWF's anemoi.

Anemoi's kernel requires as many features for every edge as all heads have channels, and adds them
to the key and the value of the edge. This project's attention is timed twice: without features, and
with the same features before their projection. The times of this project include the projection of
features, and anemoi's times do not.

Nodes, edges, heads and channels are those of the table that anemoi's developers published for an
H200 in float16. Edges lead to the nearest points of another grid. Both grids are spirals with the
numbers of points in that table.

    python -m experiments.benchmarks.gpu --dtype float16
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from experiments.benchmarks.measure import SPARSE, interleave
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention, edge_feature_attention

# Numbers of points: of ERA5's grid n320, and of an icosahedron refined six times.
ERA, HIDDEN = 542_080, 40_962
# For each mesh: queries, keys, and keys per query. The published graphs have on average 20.8, 8 and
# 3 keys per query; 20.8 was computed from their rule.
MESHES = {'era_to_h': (HIDDEN, ERA, 21), 'h_to_h': (HIDDEN, HIDDEN, 8),
          'h_to_era': (ERA, HIDDEN, 3)}
PUBLISHED_MS = {'era_to_h': 2.77, 'h_to_h': 0.83, 'h_to_era': 4.87}
FEATURES = 11  # features per edge before their projection: length, direction and eight learned ones


def measure(name: str, shape: tuple[int, int, int], heads: int, channels: int, dtype: torch.dtype,
            rounds: int) -> list[dict]:
    graph = mesh(*shape)
    times = interleave(cases(graph, heads, channels, dtype), rounds)
    return [{'graph': name, 'queries': graph.num_queries, 'keys': graph.num_keys,
             'edges': graph.num_edges, 'case': case, 'forward+backward ms': 1e3 * seconds,
             'ps per edge': 1e12 * seconds / (graph.num_edges * heads),
             'published ms': PUBLISHED_MS.get(name) if case == 'anemoi, features' else None}
            for case, seconds in times.items()]


def mesh(num_queries: int, num_keys: int, degree: int) -> BipartiteGraph:
    """Return a graph in which each query, a point of one grid on the sphere, attends to the
    ``degree`` nearest points of another grid."""
    _, nearest = KDTree(spiral(num_keys)).query(spiral(num_queries), degree)
    return BipartiteGraph.from_topk(torch.as_tensor(nearest), num_keys)


def spiral(num_points: int) -> np.ndarray:
    """Return points ``[num_points, 3]``, evenly spaced on the sphere from pole to pole."""
    z = 1 - (2 * np.arange(num_points) + 1) / num_points
    longitude = np.arange(num_points) * np.pi * (3 - 5**0.5)
    around = np.sqrt(1 - z**2)
    return np.stack([around * np.cos(longitude), around * np.sin(longitude), z], axis=1)


def cases(graph: BipartiteGraph, heads: int, channels: int,
          dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    nodes = [torch.randn(size, heads, channels, dtype=dtype, requires_grad=True)
             for size in (graph.num_queries, graph.num_keys, graph.num_keys)]
    features = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in
                ((graph.num_edges, FEATURES), (heads, channels, FEATURES))]
    grad_out, backend = torch.randn_like(nodes[0]), SPARSE[graph.device.type][-1]

    def step(attend: Callable[..., Tensor], *inputs: Tensor) -> None:
        torch.autograd.grad(attend(*inputs), inputs, grad_out)

    found = {
        backend: partial(step, partial(edge_attention, graph=graph, backend=backend), *nodes),
        f'{backend}, features': partial(
            step, lambda query, key, value, *features: edge_feature_attention(
                query, key, value, graph, *features, backend=backend), *nodes, *features)}
    if graph.device.type == 'cuda' and is_installed():
        projected = project(*features).detach().requires_grad_()
        found['anemoi, features'] = partial(step, anemoi_attention(graph), *nodes, projected)
    return found


@cache
def is_installed() -> bool:
    if find_spec('anemoi') and find_spec('anemoi.models'):
        return True
    print('skipped anemoi, which is not installed; to install it: pip install --no-deps '
          'anemoi-models')
    return False


def project(edge_attr: Tensor, projection: Tensor) -> Tensor:
    """Return the features of edges after projection to all channels, ``[num_edges, heads,
    channels]``."""
    return torch.einsum('es,hcs->ehc', edge_attr, projection)


def anemoi_attention(graph: BipartiteGraph) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return a function that computes anemoi's attention along a graph."""
    from anemoi.models.triton.gt import graph_transformer_attention_conv

    key_indptr, _, position = graph.csc
    by_query = graph.key, graph.csr[0]
    by_key = key_indptr, position.long(), graph.query
    return partial(graph_transformer_attention_conv, csc=by_query, reverse=by_key)
