"""The user's own graphs, from ``.pt``, GraphML, or CSV tables of nodes and edges."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from experiments.data.graph_parts import PARTS, GraphParts, Target, graph_parts
from experiments.data.labels import class_names, class_numbers
from experiments.data.saved_graphs import allowing_graphs
from experiments.data.text.csv_rows import csv_rows
from experiments.data.what_was_read import tell, unread
from graphattn.utils.reading import load_tensors

PART_OF = {'train': 'train', 'val': 'val', 'dev': 'val', 'valid': 'val', 'test': 'test'}
# The columns that are not features. Labels and parts are of nodes, or of graphs in graphs.csv.
_OF_NODES, _OF_EDGES = ('graph', 'node'), ('graph', 'source', 'target')
_OF_TARGETS = 'label', 'part'


def own_graphs(path: Path, target: Target | None = None, undirected: bool = True, seed: int = 0,
               classes: Sequence[str] | None = None, split: int = 0) -> GraphParts:
    r"""Read graphs from a file or a folder.

    - ``.pt``: a ``Data`` or a list of ``Data`` that ``torch.save`` wrote. Pickled code is not
      loaded. A single graph may have ``train_mask``, ``val_mask`` and ``test_mask``.
    - ``.graphml``: one graph. The attributes ``label`` and ``part`` of a node are its target and
      its part. All other attributes are features, of nodes and of edges, and must be numbers.
    - a folder with ``nodes.csv`` and ``edges.csv``::

          nodes.csv: graph,node,label,part,charge      edges.csv: graph,source,target,length
                     a,1,carbon,train,0.1                         a,1,2,1.4
                     a,2,oxygen,train,-0.3

      ``graph`` may be omitted if there is one graph, and ``part`` (train, val, test) if the
      division is random. If there is a ``graphs.csv`` (``graph``, ``label``, ``part``), each graph
      has a target instead of each node. Other columns of nodes and edges are features, and must be
      numbers. Other columns of graphs are left out.
    """
    path = Path(path)
    if path.is_dir():
        tables = _Tables(_table(path / 'nodes.csv', 'node'),
                         _table(path / 'edges.csv', 'source', 'target'),
                         _table(path / 'graphs.csv', 'graph', 'label')
                         if (path / 'graphs.csv').exists() else None)
        return _of_tables(str(path), tables, target, undirected, seed, classes)
    if not path.is_file():
        raise ValueError(f"'path' must be a .pt or .graphml file, or a folder with nodes.csv and "
                         f"edges.csv (got {path}, which does not exist)")
    if path.suffix == '.graphml':
        tables, is_directed = _of_graphml(path)
        return _of_tables(str(path), tables, target, undirected or not is_directed, seed, classes)
    if path.suffix == '.pt':
        return graph_parts(str(path), _of_pt(path), target, seed=seed, split=split,
                           classes=None if classes is None else tuple(classes))
    raise ValueError(f"'path' must end with .pt or .graphml, or be a folder with nodes.csv and "
                     f"edges.csv (got {path})")


def _of_pt(path: Path) -> list[Data]:
    try:
        with allowing_graphs():
            content = load_tensors(path)
    except Exception as error:  # pickle and zip raise many types of errors
        other = re.search(r'GLOBAL ([\w.]+)', str(error))
        reason = f'it contains {other[1]}, which is not loaded' if other else type(error).__name__
        raise ValueError(f"{path} cannot be read as PyG graphs ({reason}); write the file by "
                         f"torch.save(list_of_data, path), where each Data contains only "
                         f"tensors") from error
    graphs = content if isinstance(content, list) else [content]
    for number, graph in enumerate(graphs):
        if not isinstance(graph, Data):
            kind = 'a HeteroData' if isinstance(graph, BaseData) else type(graph).__name__
            raise ValueError(f"{path}: expected a Data or a list of Data (got {kind} as entry "
                             f"{number})")
        if isinstance(graph.y, Tensor) and graph.y.dim() == 0:
            graph.y = graph.y.unsqueeze(0)
    return graphs


class _Rows(NamedTuple):
    """The rows of a CSV table, with the name of the file and the line of each row."""

    file: str
    rows: list[dict[str, Any]]
    where: list[str]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def by_graph(self) -> dict[str, _Rows]:
        """Return the rows of each graph, in the order of the first rows of the graphs."""
        found: dict[str, _Rows] = {}
        for row, place in zip(self.rows, self.where):
            own = found.setdefault(_graph_of(row), _Rows(self.file, [], []))
            own.rows.append(row)
            own.where.append(place)
        return found


class _Tables(NamedTuple):
    nodes: _Rows
    edges: _Rows
    graphs: _Rows | None = None


def _table(path: Path, *needed: str) -> _Rows:
    try:
        used = None if path.stem != 'graphs' else ('graph', *_OF_TARGETS)
        found = list(csv_rows(path, used=used))
    except OSError as error:
        raise ValueError(f'{path}: cannot be read ({error.strerror}); a folder of graphs must '
                         'contain nodes.csv and edges.csv') from error
    if not found and 'source' not in needed:
        raise ValueError(f'{path}: expected at least one row (got an empty table)')
    for name in needed:
        if found and name not in found[0][1]:
            raise ValueError(f"{path}, line 1: expected the columns {', '.join(needed)} (got "
                             f"{', '.join(found[0][1])})")
    where = [f'{path}, line {line}' for line, _ in found]
    return _Rows(str(path), [row for _, row in found], where)


def _of_graphml(path: Path) -> tuple[_Tables, bool]:
    try:
        graph = nx.read_graphml(path, force_multigraph=True)
    except Exception as error:  # the parser raises anything
        raise ValueError(f"{path} cannot be read as GraphML ({type(error).__name__}: "
                         f"{error})") from error
    for words, view in ((_OF_NODES, graph.nodes), (_OF_EDGES, graph.edges)):
        taken = {name for *_, row in view(data=True) for name in row if name in words}
        if taken:
            raise ValueError(f"{path}: expected other attributes than {', '.join(sorted(taken))} "
                             f"(got attributes of this name); rename them")
    nodes = [{**attributes, 'node': str(name), 'graph': ''}
             for name, attributes in graph.nodes(data=True)]
    edges = [{**attributes, 'source': str(source), 'target': str(end), 'graph': ''}
             for source, end, attributes in graph.edges(data=True)]
    if not nodes:
        raise ValueError(f'{path}: expected at least one node (got 0)')
    if graph.graph.keys() - {'node_default', 'edge_default'}:
        tell(path, '1 graph', unread(graph.graph, ('node_default', 'edge_default'), 'attributes'))
    return _Tables(
        _Rows(str(path), nodes, [f"{path}, node {row['node']}" for row in nodes]),
        _Rows(str(path), edges, [f"{path}, edge {row['source']} to {row['target']}"
                                 for row in edges])), graph.is_directed()


def _of_tables(about: str, tables: _Tables, target: Target | None, undirected: bool, seed: int,
               classes: Sequence[str] | None) -> GraphParts:
    owners = tables.nodes if tables.graphs is None else tables.graphs
    labels, names = _targets(owners, target, classes)
    target = 'classes' if names is not None else 'values'
    level = 'node' if tables.graphs is None else 'graph'
    part_of = _parts(owners)
    nodes, edges = tables.nodes.by_graph(), tables.edges.by_graph()
    for name, own in edges.items():
        if name not in nodes:
            raise ValueError(f"{own.where[0]}: expected a graph with nodes (got the graph "
                             f"{name!r}, to which no node of {Path(tables.nodes.file).name} "
                             f"belongs); write the graph of each edge in the column 'graph'")
    rows_of = _rows_of_graphs(owners, nodes, level)
    own_words = _OF_NODES + _OF_TARGETS * (level == 'node')
    features = {'nodes': _feature_names(tables.nodes, own_words),
                'edges': _feature_names(tables.edges, _OF_EDGES)}
    tell(about, '; '.join(f'features of {kind}: {", ".join(map(repr, names)) or "none"}'
                          for kind, names in features.items()), {})
    graphs = {name: _graph(own, edges.get(name, _Rows('', [], [])), features, labels[rows_of[name]],
                           undirected) for name, own in nodes.items()}
    if part_of is None:
        return graph_parts(about, list(graphs.values()), target, level, names, seed)
    if len(graphs) == 1 and level == 'node':
        graph, = graphs.values()
        for part in PARTS:
            graph[f'{part}_mask'] = torch.tensor([own == part for own in part_of])
        return graph_parts(about, [graph], target, level, names)
    parts = {part: [] for part in PARTS}
    for name, graph in graphs.items():
        other = next((i for i in rows_of[name] if part_of[i] != part_of[rows_of[name][0]]), None)
        if other is not None:
            raise ValueError(f"{owners.where[other]}: expected one part for all nodes of graph "
                             f"{name!r} (got {part_of[rows_of[name][0]]} and {part_of[other]})")
        parts[part_of[rows_of[name][0]]].append(graph)
    return graph_parts(about, parts, target, level, names)


def _rows_of_graphs(owners: _Rows, nodes: dict[str, _Rows], level: str) -> dict[str, list[int]]:
    """Return which rows of a table have the targets of each graph, by the name of the graph."""
    found: dict[str, list[int]] = {}
    for number, (row, place) in enumerate(zip(owners.rows, owners.where)):
        name = _graph_of(row)
        if level == 'graph' and name in found:
            raise ValueError(f"{place}: expected one line for each graph (got {name!r} twice); "
                             f"remove one of the lines")
        if name not in nodes:
            raise ValueError(f"{place}: expected a graph with nodes (got {name!r}, to which no "
                             f"node of nodes.csv belongs); add nodes of this graph, or remove this "
                             f"line")
        found.setdefault(name, []).append(number)
    for name, own in nodes.items():
        if name not in found:
            raise ValueError(f"{own.where[0]}: graph {name!r} is missing in graphs.csv; add a line "
                             f"for this graph")
    return found


def _targets(table: _Rows, target: Target | None, classes: Sequence[str] | None
             ) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return the targets in the column ``label`` of a table, as indices of classes or as values.
    Also return the names of the classes, or ``None`` for values."""
    if target == 'labels':
        raise ValueError(f"{table.file}: 'target' must be 'classes' or 'values' for tables (got "
                         f"'labels'); save graphs with several labels as .pt")
    labels = []
    for row, place in zip(table.rows, table.where):
        if str(row.get('label', '')).strip() == '':
            raise ValueError(f"{place}: expected a label in the column 'label' (got none); to "
                             f"leave out targets, save the graphs as .pt, with the class -100")
        labels.append(str(row['label']).strip())
    numbers = [_number(label) for label in labels]
    if target is None and classes is None:
        is_real = all(number is not None for number in numbers) and any(
            not number.is_integer() for number in numbers)
        target = 'values' if is_real else 'classes'
    if target == 'values':
        for number, place, label in zip(numbers, table.where, labels):
            if number is None or not math.isfinite(number):
                raise ValueError(f"{place}: expected a finite number in the column 'label' (got "
                                 f"{label!r:.40})")
        return torch.tensor(numbers), None
    names = class_names(labels, classes, table.file)
    return torch.from_numpy(class_numbers(labels, names, table.where.__getitem__)), names


def _parts(table: _Rows) -> list[str] | None:
    """Return the part of each row of a table (train, val or test), or ``None`` if the table has no
    column ``part``."""
    given = [str(row.get('part', '')).strip() for row in table.rows]
    if not any(given):
        return None
    for name, place in zip(given, table.where):
        if name not in PART_OF:
            raise ValueError(f"{place}: expected {', '.join(PARTS)} in the column 'part' (got "
                             f"{name!r:.40})")
    return [PART_OF[name] for name in given]


def _graph(nodes: _Rows, edges: _Rows, features: dict[str, list[str]], y: Tensor,
           undirected: bool) -> Data:
    number_of: dict[str, int] = {}
    for row, place in zip(nodes.rows, nodes.where):
        if str(row['node']) in number_of:
            raise ValueError(f"{place}: expected one line for each node (got {row['node']!r} "
                             f"twice); remove one of the lines")
        number_of[str(row['node'])] = len(number_of)
    for row, place in zip(edges.rows, edges.where):
        for column in ('source', 'target'):
            if str(row[column]) not in number_of:
                raise ValueError(f'{place}: {column} {row[column]!r} is not a node of '
                                 f"{'the graph' if _graph_of(row) == '' else 'graph '}"
                                 f"{_graph_of(row)}; add a line for this node, or remove the edge")
    ends = [[number_of[str(row[column])] for row in edges.rows] for column in ('source', 'target')]
    edge_index = torch.tensor(ends, dtype=torch.int64)
    x, edge_attr = (_features(rows, features[name])
                    for name, rows in (('nodes', nodes), ('edges', edges)))
    if undirected:
        ahead, back = (source * len(number_of) + end for source, end in (edge_index,
                                                                         edge_index.flip(0)))
        is_missing = ~torch.isin(back, ahead)
        edge_index = torch.cat([edge_index, edge_index[:, is_missing].flip(0)], dim=1)
        edge_attr = None if edge_attr is None else torch.cat([edge_attr, edge_attr[is_missing]])
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=y, num_nodes=len(number_of))


def _feature_names(table: _Rows, words: Sequence[str]) -> list[str]:
    return [name for name in table.columns if name not in words]


def _features(table: _Rows, names: list[str]) -> Tensor | None:
    if not names:
        return None
    values = torch.empty(len(table.rows), len(names))
    for i, (row, place) in enumerate(zip(table.rows, table.where)):
        for j, name in enumerate(names):
            number = _number(row.get(name))
            if number is None or not math.isfinite(number):
                raise ValueError(f"{place}: expected a finite number in the column {name!r} (got "
                                 f"{row.get(name, '')!r:.40}), because this column is read as a "
                                 f"feature; remove the column if it is none")
            values[i, j] = number
    return values


def _graph_of(row: dict[str, Any]) -> str:
    return str(row.get('graph', '')).strip()


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
