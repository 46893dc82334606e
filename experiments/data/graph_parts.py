"""Graphs with targets, divided into training, validation and test parts."""

import copy
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from experiments.data.batch import NO_LABEL
from experiments.data.what_was_read import number_of, tell, unread

PARTS = 'train', 'val', 'test'
MASKS = tuple(f'{part}_mask' for part in PARTS)
Level = Literal['node', 'graph']
Target = Literal['classes', 'labels', 'values']
_READ = ('x', 'edge_index', 'edge_attr', 'y', 'num_nodes', *MASKS)
HELD_OUT = .1  # share of each of validation and test, of the graphs or of the nodes of one graph


class GraphParts(NamedTuple):
    """The graphs of a task, with their targets."""

    about: str
    parts: dict[str, Sequence[Data]]  # one graph is in all parts, with train_mask, val_mask, ...
    level: Level  # what has a target
    target: Target  # 'labels' are several yes-or-no labels, 'values' real numbers
    classes: tuple[str, ...] | None = None

    @property
    def graphs(self) -> list[Data]:
        """Return the graphs of all parts, each once."""
        return list({id(graph): graph for part in self.parts.values() for graph in part}.values())

    @property
    def out_channels(self) -> int:
        targets = [graph.y for graph in self.graphs]
        if self.target != 'classes':
            return targets[0].size(1)
        if self.classes is not None:
            return len(self.classes)
        return 1 + max(0, *(int(y.max()) for y in targets))

    def features_of(self, name: str) -> int | list[int] | None:
        """Return the number of real features, or the numbers of categories, of an attribute."""
        graphs = self.graphs
        if name not in graphs[0]:
            return None
        values = [_columns(graph[name]) for graph in graphs]
        if values[0].is_floating_point():
            return values[0].size(1)
        filled = [value.amax(dim=0) for value in values if len(value)]
        return (torch.stack(filled).amax(dim=0) + 1).tolist() if filled else [1] * (
            values[0].size(1))


def allowing_graphs() -> torch.serialization.safe_globals:
    """Return a context in which ``torch.load`` loads a saved ``Data`` without running code."""
    # PyG allows Data itself, but not the classes of the objects inside it.
    return torch.serialization.safe_globals([
        BaseStorage, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage])


def graph_parts(about: str, graphs: dict[str, Sequence[Data]] | Sequence[Data],
                target: Target | None = None, level: Level | None = None,
                classes: tuple[str, ...] | None = None, seed: int = 0, split: int = 0
                ) -> GraphParts:
    parts = graphs if isinstance(graphs, dict) else {'all': graphs}
    parts = {part: list(some) for part, some in parts.items()}
    where = {id(graph): f'{about}, graph {number}' + (f' of {part}' if len(parts) > 1 else '')
             for part, some in parts.items() for number, graph in enumerate(some)}
    copies = {id(graph): _checked(graph, where[id(graph)])
              for some in parts.values() for graph in some}
    named = [(graph, where[number]) for number, graph in copies.items()]
    others = unread((name for graph, _ in named for name in graph.keys()), _READ,
                    'attributes that only transforms and encodings use,')
    if others:
        tell(about, number_of('graph', len(named)), others)
    if named:
        level = level or _level_of(named)
        target = target or _target_of(named)
        _check_alike(named, level)
        for graph, place in named:
            graph.y = _checked_targets(graph.y, target, place)
    parts = {part: [copies[id(graph)] for graph in some] for part, some in parts.items()}
    if 'all' in parts:
        parts = _divided(about, parts['all'], seed, split)
    for part, some in parts.items():
        if not some or len(named) == 1 and not some[0][f'{part}_mask'].any():
            raise ValueError(f"{about}: expected training, validation and test examples (got none "
                             f"for {part!r} of {len(named)} graphs); add graphs to this part")
    return GraphParts(about, parts, level, target, classes)


# Division ############################################################################


def _divided(about: str, graphs: list[Data], seed: int, split: int) -> dict[str, list[Data]]:
    rng = np.random.default_rng(seed)
    if len(graphs) != 1:
        pieces = _pieces(rng.permutation(len(graphs)))
        return {part: [graphs[number] for number in piece] for part, piece in pieces.items()}
    graph, = graphs
    given = [name for name in MASKS if name in graph]
    if given and len(given) < len(MASKS):
        raise ValueError(f"{about}: expected all of {', '.join(MASKS)}, or none of them (got "
                         f"{', '.join(given)}); save the graph with all three masks as .pt, and "
                         f"load the file by experiments.tasks.graphs.OwnGraphs")
    if given:
        for name in given:
            graph[name] = _mask(graph[name], graph.num_nodes, split, f'{about}: {name!r}')
    else:
        is_labelled = graph.y.isfinite() if graph.y.is_floating_point() else graph.y != NO_LABEL
        labelled = _columns(is_labelled).any(dim=1).nonzero().flatten().numpy()
        for part, piece in _pieces(rng.permutation(labelled)).items():
            graph[f'{part}_mask'] = torch.zeros(graph.num_nodes, dtype=torch.bool)
            graph[f'{part}_mask'][piece] = True
    return {part: [graph] for part in PARTS}


def _pieces(order: np.ndarray) -> dict[str, np.ndarray]:
    held_out = max(1, round(HELD_OUT * len(order)))
    ends = np.maximum(0, len(order) - held_out * np.array([2, 1]))
    return dict(zip(PARTS, np.split(order, ends)))


def _mask(mask: Tensor, num_nodes: int, split: int, what: str) -> Tensor:
    if mask.dtype != torch.bool or mask.dim() not in (1, 2) or len(mask) != num_nodes:
        raise ValueError(f"{what} must be a bool Tensor [{num_nodes}] or [{num_nodes}, divisions] "
                         f"(got {mask.dtype} of shape {tuple(mask.shape)})")
    if mask.dim() == 2 and not 0 <= split < mask.size(1):
        raise ValueError(f"'split' must be from 0 to {mask.size(1) - 1}, the columns of the masks "
                         f"(got {split})")
    return mask[:, split] if mask.dim() == 2 else mask


# Checks ##############################################################################


def _checked(graph: Data, where: str) -> Data:
    """Return a copy of a graph with features ``x``, or name the attribute that is wrong."""
    graph = copy.copy(graph)
    num_nodes, edge_index, y = graph.num_nodes, graph.edge_index, graph.y
    if not num_nodes:
        raise ValueError(f'{where}: expected at least one node (got 0)')
    if not isinstance(edge_index, Tensor) or edge_index.dtype != torch.int64 or (
            edge_index.layout != torch.strided):
        raise ValueError(f"{where}: expected 'edge_index' as a dense int64 Tensor [2, num_edges] "
                         f"(got {_short(edge_index)})")
    try:
        graph.validate()
    except ValueError as error:
        raise ValueError(f'{where}: {error}') from error
    for name, rows in (('x', num_nodes), ('edge_attr', edge_index.size(1))):
        if graph.get(name) is not None:
            graph[name] = _checked_features(graph[name], rows, f'{where}: {name!r}')
        elif name in graph:
            del graph[name]
    if 'x' not in graph:
        graph.x = torch.ones(num_nodes, 1)
    if not isinstance(y, Tensor) or y.dim() not in (1, 2):
        raise ValueError(f"{where}: expected targets 'y', a Tensor with a row for each node or one "
                         f"row for the graph (got {_short(y)})")
    if y.is_floating_point() and bool(y.isinf().any()):
        raise ValueError(f"{where}: 'y' must be finite, or NaN for missing targets (got infinite "
                         f"values)")
    return graph


def _checked_features(value: object, rows: int, what: str) -> Tensor:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_complex() or (
            value.dim() not in (1, 2) or len(value) != rows):
        raise ValueError(f"{what} must be a dense Tensor with {rows} rows (got {_short(value)})")
    is_real = value.is_floating_point()
    if is_real and not bool(value.isfinite().all()):
        raise ValueError(f"{what} must be finite (got NaN or infinite values)")
    if not is_real and value.numel() and int(value.min()) < 0:
        raise ValueError(f"{what} must contain categories from 0, because its dtype is an integer "
                         f"(got {int(value.min())}); convert real-valued features by .float()")
    return _columns(value).float() if is_real else _columns(value).long()


def _check_alike(named: list[tuple[Data, str]], level: Level) -> None:
    first = named[0][0]
    for graph, where in named:
        rows = graph.num_nodes if level == 'node' else 1
        if len(graph.y) != rows:
            raise ValueError(f"{where}: expected 'y' with {rows} rows, one for each {level} (got "
                             f"{_short(graph.y)}); if a graph has several targets, use the shape "
                             f"[1, targets]")
        for name in ('x', 'edge_attr', 'y'):
            if _form(graph, name) != _form(first, name):
                raise ValueError(f"{where}: expected {name!r} to have the form "
                                 f"{_form(first, name)}, as in the first graph (got "
                                 f"{_form(graph, name)})")


def _form(graph: Data, name: str) -> str:
    if name not in graph:
        return 'none'
    value = graph[name]
    kind = 'real numbers' if value.is_floating_point() else 'integers'
    return f'{kind} in {_columns(value).size(1)} columns'


def _level_of(named: list[tuple[Data, str]]) -> Level:
    # if every graph has one node, the shape does not tell
    is_node = any(len(graph.y) == graph.num_nodes > 1 for graph, _ in named)
    return 'node' if is_node else 'graph'


def _target_of(named: list[tuple[Data, str]]) -> Target:
    first = named[0][0].y
    num_columns = _columns(first).size(1)
    if first.is_floating_point() and num_columns == 1:
        return 'values'
    if first.dim() == 1:
        return 'classes'
    if all(_are_labels(graph.y) for graph, _ in named):
        return 'labels'
    return 'classes' if num_columns == 1 else 'values'


def _are_labels(y: Tensor) -> bool:
    return bool(((y == 0) | (y == 1) | y.isnan()).all())


def _checked_targets(y: Tensor, target: Target, where: str) -> Tensor:
    if target == 'labels' and not _are_labels(y):
        raise ValueError(f"{where}: expected the labels 0, 1 or NaN in 'y' (got other values); for "
                         f"other targets, pass target='classes' or target='values'")
    if target != 'classes':
        return _columns(y).float()
    if _columns(y).size(1) > 1 or y.is_floating_point() and not bool((y == y.round()).all()):
        raise ValueError(f"{where}: expected classes in 'y', one integer for each row (got "
                         f"{_short(y)}); for other targets, pass target='labels' or "
                         f"target='values'")
    y = y.flatten().long()
    if bool(((y < 0) & (y != NO_LABEL)).any()):
        raise ValueError(f"{where}: expected classes from 0 in 'y', and {NO_LABEL} where the class "
                         f"is unknown (got {int(y[y != NO_LABEL].min())})")
    return y


def _columns(value: Tensor) -> Tensor:
    return value.unsqueeze(1) if value.dim() == 1 else value


def _short(value: object) -> str:
    return f'{value.dtype} of shape {tuple(value.shape)}' if isinstance(value, Tensor) else (
        'none' if value is None else type(value).__name__)
