"""Conversion of heterogeneous graphs to graphs whose features include the types of nodes and
edges."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from experiments.data.batch import NO_LABEL
from experiments.data.graph_parts import PARTS


def homogeneous(graph: HeteroData, node_type: str | None = None) -> Data:
    """Convert a heterogeneous graph to one graph of all nodes and edges.

    The features of all types of nodes have separate columns. A node has zeros in the columns of
    other types. Further columns mark the type of a node by a 1. ``edge_attr`` is the index of the
    edge's type, int64 ``[num_edges, 1]``. Only nodes of ``node_type`` have targets and count in
    masks.
    """
    with_targets = [kind for kind in graph.node_types if 'y' in graph[kind]]
    if node_type is None and len(with_targets) == 1:
        node_type, = with_targets
    if node_type not in with_targets:
        raise ValueError(f"'node_type' must be one of the types with targets, "
                         f"{', '.join(with_targets) or 'but no type has any'} (got "
                         f"{node_type})")
    sizes = {kind: graph[kind].num_nodes for kind in graph.node_types}
    first = dict(zip(sizes, torch.tensor([0, *sizes.values()]).cumsum(0).tolist()))
    edges = [torch.stack([source + first[kind[0]], target + first[kind[2]]])
             for kind in graph.edge_types for source, target in [graph[kind].edge_index]]
    types = [torch.full((edge_index.size(1), 1), number) for number, edge_index in enumerate(edges)]
    own = slice(first[node_type], first[node_type] + sizes[node_type])
    num_nodes, y = sum(sizes.values()), graph[node_type].y
    missing = torch.nan if y.is_floating_point() else NO_LABEL
    targets = y.new_full((num_nodes, *y.shape[1:]), missing)
    targets[own] = y
    data = Data(x=_features(graph), edge_index=torch.cat(edges, dim=1), edge_attr=torch.cat(types),
                y=targets)
    for part in PARTS:
        if f'{part}_mask' in graph[node_type]:
            mask = torch.zeros(num_nodes, dtype=torch.bool)
            mask[own] = graph[node_type][f'{part}_mask']
            data[f'{part}_mask'] = mask
    read = {'x', 'edge_index', 'num_nodes'}, {'y', *(f'{part}_mask' for part in PARTS)}
    others = [f'{name} of {kind if isinstance(kind, str) else kind[1]}'
              for kind in (*graph.node_types, *graph.edge_types) for name in graph[kind].keys()
              if name not in read[0] and not (kind == node_type and name in read[1])]
    if others:
        warnings.warn(f"left out of the heterogeneous graph: {', '.join(others)}", stacklevel=2)
    return data


def _features(graph: HeteroData) -> Tensor:
    kinds = graph.node_types
    parts = [graph[kind].x.float() if 'x' in graph[kind] else torch.zeros(graph[kind].num_nodes, 0)
             for kind in kinds]
    widths = [part.size(1) for part in parts]
    rows = []
    for number, part in enumerate(parts):
        before, after = sum(widths[:number]), sum(widths[number + 1:])
        is_type = F.one_hot(torch.full((len(part),), number), len(kinds))
        rows.append(torch.cat([F.pad(part, (before, after)), is_type], dim=1))
    return torch.cat(rows)
