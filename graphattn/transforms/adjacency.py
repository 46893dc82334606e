"""The checked edges of PyG's ``Data`` as a matrix."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from torch_geometric.data import Data

from graphattn._checks import check_edge_index, check_range


def adjacency_of(data: Data, max_dense: int) -> np.ndarray | sp.csr_array:
    """Return the adjacency matrix, float64 ``[num_nodes, num_nodes]``: the weight of the edge from
    each row to each column, or 1 if edges have no weights. The weights of repeated edges are added.

    Args:
        data (Data): A graph.
        max_dense (int): Number of nodes up to which the matrix is a dense array. For more nodes it
            is sparse.

    Raises:
        ValueError: ``data`` has no ``edge_index``, or ``edge_index`` contains nodes that do not
            exist; or weights are not ``[num_edges]``, are negative, or are not finite.
    """
    row, column, weight = _weighted_edges(data)
    shape = data.num_nodes, data.num_nodes
    if data.num_nodes <= max_dense:
        return np.bincount(row * shape[0] + column, weight, shape[0]**2).reshape(shape)
    adjacency = sp.csr_array((weight, (row.astype(np.int32), column.astype(np.int32))), shape=shape)
    adjacency.eliminate_zeros()
    return adjacency


def _weighted_edges(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if data.edge_index is None:
        raise ValueError(f"'data' must have the attribute 'edge_index' (got {data})")
    edge_index = data.edge_index.cpu()
    check_edge_index(edge_index)
    check_range(edge_index, data.num_nodes, data.num_nodes)
    row, column = edge_index.numpy()
    if data.edge_weight is None:
        return row, column, np.ones(len(row))
    weight = data.edge_weight.detach().cpu().double().numpy()
    if weight.shape != row.shape or not ((weight >= 0) & (weight < np.inf)).all():
        least, most = (weight.min(), weight.max()) if weight.size else (np.nan, np.nan)
        raise ValueError(f"'edge_weight' must have shape [num_edges], with finite values of at "
                         f"least 0 (got shape {weight.shape}, from {most} down to {least}, in "
                         f"{data}); turn a distance d into the weight exp(-d)")
    return row, column, weight
