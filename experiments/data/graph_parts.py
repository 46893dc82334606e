"""Graphs with targets, in three parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from experiments.data.batch import NO_LABEL

PARTS = 'train', 'val', 'test'
Level = Literal['node', 'graph']
Target = Literal['classes', 'labels', 'values']
SHARES = .8, .1, .1  # of graphs, or of the nodes of one graph, in a random division


class GraphParts(NamedTuple):
    """The graphs of a task.

    Attributes:
        about (str): A short description.
        parts (dict): Graphs of ``train``, ``val`` and ``test``; or one graph in all of them, with
            ``train_mask``, ``val_mask`` and ``test_mask``.
        level (str): ``'node'`` or ``'graph'``, what targets are for.
        target (str): ``'classes'``, ``'labels'`` or ``'values'``.
        classes (tuple of str, optional): The names of the classes, if they have any.
    """

    about: str
    parts: dict[str, Sequence[Data]]
    level: Level
    target: Target
    classes: tuple[str, ...] | None = None

    @property
    def graphs(self) -> list[Data]:
        """Return the graphs of all parts; one graph that is in all of them once."""
        return list({id(graph): graph for part in self.parts.values() for graph in part}.values())

    @property
    def out_channels(self) -> int:
        """Return the number of classes, labels or values."""
        targets = [graph.y for graph in self.graphs]
        if self.target != 'classes':
            return targets[0].view(len(targets[0]), -1).size(1)
        if self.classes is not None:
            return len(self.classes)
        return 1 + max((int(y.max()) for y in targets if y.numel()), default=0)

    def features_of(self, name: str) -> int | list[int] | None:
        """Return the number of real features in an attribute of all graphs, or the number of
        categories of each feature; ``None`` if a graph lacks it."""
        values = [graph[name] for graph in self.graphs if name in graph]
        if len(values) < len(self.graphs) or not values:
            return None
        values = [value.view(len(value), -1) for value in values]
        if values[0].is_floating_point():
            return values[0].size(1)
        filled = [value.max(dim=0).values for value in values if len(value)]
        return (torch.stack(filled).max(dim=0).values + 1).tolist() if filled else None


def graph_parts(about: str, parts: dict[str, Sequence[Data]], target: Target | None = None,
                level: Level | None = None, classes: tuple[str, ...] | None = None) -> GraphParts:
    """Check graphs, and find out what their targets are.

    Targets for nodes have a row for each node of all graphs. Integers in one dimension are
    classes, integers in two are labels, and so are columns of 0, 1 and NaN; others are values.

    Raises:
        ValueError: A graph is malformed; the message names it.
    """
    parts = {name: [_checked(graph, f'{about}, graph {number} of {name}')
                    for number, graph in enumerate(part)] for name, part in parts.items()}
    found = GraphParts(about, parts, 'graph', 'classes', classes)
    for name, part in parts.items():
        if not part:
            raise ValueError(f"{about}: expected graphs in each part (got none in {name!r})")
    first = found.graphs[0].y
    if level is None:
        is_node = all(len(graph.y) == graph.num_nodes for graph in found.graphs)
        level = 'node' if is_node else 'graph'
    if target is None:
        columns = first.view(len(first), -1).size(1)
        if not first.is_floating_point():
            target = 'classes' if first.dim() == 1 else 'labels'
        else:
            are_bits = all(bool(((graph.y == 0) | (graph.y == 1) | graph.y.isnan()).all())
                           for graph in found.graphs)
            target = 'labels' if are_bits and columns > 1 else 'values'
    rows = {graph.num_nodes if level == 'node' else 1 for graph in found.graphs[:1]}
    if len(first) not in rows:
        raise ValueError(f"{about}: expected 'y' with a row for each {level} (got "
                         f"{len(first)} rows for {found.graphs[0].num_nodes} nodes)")
    return found._replace(level=level, target=target)


def divided_graphs(graphs: Sequence[Data], seed: int) -> dict[str, list[Data]]:
    """Divide graphs at random, 80 % for training; one graph by its nodes, with masks."""
    rng = np.random.default_rng(seed)
    if len(graphs) > 1:
        pieces = _pieces(rng.permutation(len(graphs)))
        return {part: [graphs[number] for number in piece] for part, piece in pieces.items()}
    graph, = graphs
    is_labelled = graph.y.isfinite() if graph.y.is_floating_point() else graph.y != NO_LABEL
    labelled = is_labelled.view(len(graph.y), -1).any(dim=1).nonzero().flatten().numpy()
    for part, piece in _pieces(rng.permutation(labelled)).items():
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
        mask[piece] = True
        graph[f'{part}_mask'] = mask
    return {part: [graph] for part in PARTS}


def _pieces(order: np.ndarray) -> dict[str, np.ndarray]:
    ends = np.round(np.cumsum(SHARES) * len(order)).astype(int)
    return dict(zip(PARTS, np.split(order, ends[:-1])))


def _checked(graph: Data, where: str) -> Data:
    """Return a graph with ``x``, after checking its edges and targets."""
    if graph.edge_index is None:
        raise ValueError(f"{where}: expected an 'edge_index' (got none)")
    edge_index, num_nodes = graph.edge_index, graph.num_nodes
    if edge_index.dtype != torch.int64 or edge_index.dim() != 2 or len(edge_index) != 2:
        raise ValueError(f"{where}: expected 'edge_index' int64 [2, num_edges] (got "
                         f"{edge_index.dtype} of shape {tuple(edge_index.shape)})")
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ValueError(f"{where}: expected nodes from 0 to {num_nodes - 1} in 'edge_index' (got "
                         f"{int(edge_index.min())} to {int(edge_index.max())})")
    if not isinstance(graph.y, Tensor) or graph.y.dim() == 0:
        raise ValueError(f"{where}: expected targets 'y', a Tensor with a row for each node or for "
                         f"the graph (got {graph.y})")
    for name in ('x', 'edge_attr'):
        if name in graph and graph[name] is not None and graph[name].is_floating_point() and (
                not bool(graph[name].isfinite().all())):
            raise ValueError(f"{where}: {name!r} must be finite (got NaN or infinite values)")
    if graph.x is None:
        graph.x = torch.ones(num_nodes, 1)
    return graph


