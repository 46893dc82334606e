"""Graphs of points in space, whose edges join nearest neighbours or all points within a radius."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphattn._checks import check_floating, check_has_numbers, check_number, check_size
from graphattn.graphs.segments import Segments

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

    from graphattn.graphs.graph import BipartiteGraph


def from_nearest(
    cls: type[BipartiteGraph],
    query: Tensor,
    k: int,
    key: Tensor | None = None,
    *,
    query_ptr: Tensor | None = None,
    key_ptr: Tensor | None = None,
) -> BipartiteGraph:
    """Return the graph in which each query attends to its ``k`` nearest keys.

    Distances are Euclidean, in float64. If queries and keys are the same, a point is its own
    nearest neighbour; ``from_nearest(x, k + 1).without_self_loops()`` has ``k`` others. Among other
    keys at the same distance, the search tree decides. Coordinates receive no gradient.

    Args:
        query (Tensor): Coordinates ``[num_queries, dimensions]``.
        k (int): Number of keys of each query.
        key (Tensor, optional): Coordinates ``[num_keys, dimensions]``; ``query`` if omitted.
        query_ptr (Tensor, optional): Where the points of each example begin, int64
            ``[num_segments + 1]``, as in a PyG ``Batch``; one example if omitted.
        key_ptr (Tensor, optional): Where the keys of each example begin, int64 ``[num_segments +
            1]``; ``query_ptr`` if ``key`` is omitted.

    Returns:
        BipartiteGraph on the device of ``query``. It is built on the host.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A coordinate is not finite, an example has fewer than ``k`` keys, or shapes do
            not match.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> points = torch.tensor([[0., 0.], [1., 0.], [5., 0.]])
        >>> BipartiteGraph.from_nearest(points, 2).to_mask().int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    check_size('k', k, at_least=1)

    def nearest(queries: np.ndarray, keys: cKDTree, number: int) -> np.ndarray:
        if keys.n < k:
            raise ValueError(f"'k' must be at most the number of keys of each example (got {k}, "
                             f"but example {number} has {keys.n} keys)")
        _, found = keys.query(queries, k=[*range(1, k + 1)],
                              workers=torch.get_num_threads())
        if key is None:  # one of several equal points may not have found itself
            own = np.arange(len(queries))
            is_lost = (found != own[:, None]).all(axis=1)
            found[is_lost, -1] = own[is_lost]
        return np.stack([found.ravel(), np.repeat(np.arange(len(queries)), k)])

    return _graph(cls, query, key, query_ptr, key_ptr, nearest)


def from_radius(
    cls: type[BipartiteGraph],
    query: Tensor,
    radius: float,
    key: Tensor | None = None,
    *,
    query_ptr: Tensor | None = None,
    key_ptr: Tensor | None = None,
) -> BipartiteGraph:
    """Return the graph in which each query attends to all keys within a radius. If queries and keys
    are the same points, each point attends to itself too.

    Args:
        query, key, query_ptr, key_ptr (Tensor): As in :meth:`from_nearest`.
        radius (float): Largest Euclidean distance of a key.

    Returns:
        BipartiteGraph on the device of ``query``. It is built on the host.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A coordinate is not finite, the radius is negative, or shapes do not match.
    """
    check_number('radius', radius, 'finite and not negative')

    def within(queries: np.ndarray, keys: cKDTree, number: int) -> np.ndarray:
        found = keys.query_ball_point(queries, radius, workers=torch.get_num_threads(),
                                      return_sorted=False)
        count = np.fromiter(map(len, found), np.int64, len(found))
        key = np.concatenate([np.asarray(each, np.int64) for each in found])
        return np.stack([key, np.repeat(np.arange(len(queries)), count)])

    return _graph(cls, query, key, query_ptr, key_ptr, within)


def _graph(cls: type[BipartiteGraph], query: Tensor, key: Tensor | None, query_ptr: Tensor | None,
           key_ptr: Tensor | None, edges_of: Callable) -> BipartiteGraph:
    # edges_of(queries, keys, number) takes the coordinates, the tree of keys and the index of one
    # example, and returns its edges [2, num_edges] with keys in row 0.
    from scipy.spatial import cKDTree

    if key is None and key_ptr is not None:
        raise ValueError("'key_ptr' must be None without 'key', because then the points of 'query' "
                         "are also the keys; omit 'key_ptr', or pass 'key'")
    own = _coordinates('query', query)
    others = own if key is None else _coordinates('key', key)
    if own.shape[1] != others.shape[1]:
        raise ValueError(f"'key' must have {own.shape[1]} columns, the coordinates of a point of "
                         f"'query' (got {others.shape[1]})")
    key_ptr = query_ptr if key is None else key_ptr
    segments = Segments.of(query_ptr, key_ptr, (len(own), len(others)), query.device)
    ends = zip(*(ptr.tolist() for ptr in segments.ptrs))
    edges = [np.empty((2, 0), np.int64)]
    for number, ((first_query, first_key), (last_query, last_key)) in enumerate(pairwise(ends)):
        if last_query > first_query:
            tree = cKDTree(others[first_key:last_key])
            part = edges_of(own[first_query:last_query], tree, number)
            edges.append(part + np.array([[first_key], [first_query]]))
    edge_index = torch.from_numpy(np.concatenate(edges, axis=1)).to(segments.query_ptr.device)
    return cls.from_edge_index(edge_index, len(own), len(others), query_ptr=query_ptr,
                               key_ptr=key_ptr)


def _coordinates(name: str, points: Tensor) -> np.ndarray:
    check_floating(**{name: points})
    if points.dim() != 2 or points.size(1) == 0:
        raise ValueError(f"'{name}' must have shape [num_points, dimensions] (got shape "
                         f"{tuple(points.shape)})")
    check_has_numbers(name, points)
    coordinates = points.detach().cpu().double().numpy()
    is_finite = np.isfinite(coordinates).all(axis=1)
    if not is_finite.all():
        first = int(is_finite.argmin())
        raise ValueError(f"'{name}' must have finite coordinates (got "
                         f"{coordinates[first].tolist()} at point {first})")
    return coordinates

