"""Graphs from edges in any order, with duplicates merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphattn._checks import (
    check_bool,
    check_edge_index,
    check_edge_prob,
    check_num_pairs,
    check_range,
    check_size,
)
from graphattn.graphs.pairs import (
    first_of_each,
    number_pairs,
    rows_of_edges,
    rows_of_pairs,
    sort_pairs,
)
from graphattn.graphs.segments import Segments

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph


class RepeatedEdges(ValueError):
    """Raised if duplicate edges would have to be merged although each has its own value."""


def from_edge_index(
    cls: type[BipartiteGraph],
    edge_index: Tensor,
    num_queries: int,
    num_keys: int | None = None,
    *,
    edge_prob: Tensor | None = None,
    query_ptr: Tensor | None = None,
    key_ptr: Tensor | None = None,
    return_perm: bool = False,
) -> BipartiteGraph | tuple[BipartiteGraph, Tensor]:
    """Return the graph of edges in any order. Duplicates are merged.

    The graph sorts its edges by query and then by key. All values on edges (``edge_bias``,
    ``edge_gate``, attention weights) must be in this order. ``return_perm`` returns the permutation
    from the order of ``edge_index`` to the order of the graph.

    The other arguments are those of :class:`BipartiteGraph`. Duplicates of an edge must have the
    same ``edge_prob``.

    Args:
        return_perm (bool): Whether to return ``(graph, perm)``, where ``edge_index[:, perm]``
            equals ``graph.edge_index``. So ``values[perm]`` are in the order of the graph. With
            ``return_perm``, duplicate edges raise an error.

    Raises:
        RepeatedEdges: ``return_perm`` is set, and there are duplicate edges.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> edge_index = torch.tensor([[2, 0, 1], [1, 0, 0]])  # key over query, in any order
        >>> weight = torch.tensor([.1, .2, .3])                # on these edges
        >>> graph, perm = BipartiteGraph.from_edge_index(edge_index, 2, 3, return_perm=True)
        >>> graph.edge_index.as_tensor(), weight[perm]
        (tensor([[0, 1, 2],
                [0, 0, 1]]), tensor([0.2000, 0.3000, 0.1000]))
    """
    num_keys = num_queries if num_keys is None else num_keys
    check_edge_index(edge_index)
    check_size('num_queries', num_queries)
    check_size('num_keys', num_keys)
    check_num_pairs(num_queries, num_keys)
    check_bool(return_perm=return_perm)
    sizes = int(num_queries), int(num_keys)
    if return_perm and edge_prob is None and (
            found := rows_of_edges(plain(edge_index), *sizes)) is not None:
        indptr, key, perm, is_reordered = found
        segments = Segments.of(query_ptr, key_ptr, sizes, edge_index.device)
        graph = cls._of(indptr, key, int(num_keys), segments, None, is_reordered)
        graph._validate_values()
        return graph, perm
    check_range(edge_index, num_queries, num_keys)
    if edge_prob is not None:
        check_edge_prob(edge_prob, edge_index.size(1), edge_index.device)
    segments = Segments.of(query_ptr, key_ptr, sizes, edge_index.device)
    given = number_pairs(*plain(edge_index), num_keys)
    if return_perm or edge_prob is not None:
        perm = given.argsort(stable=True)
        pair = given[perm]
        is_first = first_of_each(pair)
        if return_perm and not bool(is_first.all()):
            raise RepeatedEdges(f"'edge_index' must contain each edge only once, because its order "
                                f"is that of values on edges (got {given.numel()} edges, "
                                f"{int(is_first.sum())} of them different); merge duplicates by "
                                f"torch_geometric.utils.coalesce")
        if edge_prob is not None:
            prob = edge_prob[perm]
            if bool((prob[1:] != prob[:-1])[~is_first[1:]].any()):
                raise ValueError("'edge_prob' must be the same for all duplicates of an edge (got "
                                 "different probabilities); pass each edge only once")
            edge_prob = prob[is_first]
        pair = pair if return_perm else pair[is_first]
    else:
        pair = sort_pairs(given)
    graph = cls._of(*rows_of_pairs(pair, *sizes), int(num_keys), segments, edge_prob,
                    not torch.equal(pair, given))
    graph._validate_values()
    return (graph, perm) if return_perm else graph


def plain(edge_index: Tensor) -> Tensor:
    if type(edge_index) is Tensor:  # avoids importing PyG, which takes seconds
        return edge_index
    from torch_geometric import EdgeIndex

    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
