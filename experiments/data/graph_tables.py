"""The user's own graphs: ``.pt``, GraphML, or CSV tables of nodes and edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from experiments.data.graph_parts import (
    PARTS,
    GraphParts,
    Target,
    divided_graphs,
    graph_parts,
)
from experiments.data.labels import class_names, class_numbers
from experiments.data.text.csv_rows import csv_rows

PART_OF = {'train': 'train', 'val': 'val', 'dev': 'val', 'valid': 'val', 'test': 'test'}
_WORDS = {'graph', 'node', 'label', 'part', 'source', 'target'}


def own_graphs(path: Path, target: Target | None = None, undirected: bool = True, seed: int = 0,
               classes: Sequence[str] | None = None) -> GraphParts:
    r"""Read graphs from a file or a folder.

    - ``.pt``: a ``Data`` or a list of ``Data`` by ``torch.save``, read without pickled code;
    - ``.graphml``: one graph. The node attribute ``label`` is the target, the other numbers are
      features, also on edges;
    - a folder with ``nodes.csv`` and ``edges.csv``::

          nodes.csv: graph,node,label,part,charge      edges.csv: graph,source,target,length
                     a,1,carbon,train,0.1                         a,1,2,1.4
                     a,2,oxygen,train,-0.3

      ``graph`` may be omitted for one graph, ``part`` (train, val, test) for a random division.
      With ``graphs.csv`` (``graph``, ``label``, ``part``) the targets are of graphs. Other columns
      are features: numbers.

    Args:
        path (Path): The file or folder.
        target (str, optional): ``'classes'`` or ``'values'`` for labels; if omitted, labels with a
            fraction are values.
        undirected (bool): Add the reverse of each edge of GraphML and CSV.
        seed (int): Seed of a random division.
        classes (sequence of str, optional): The names of the classes in order; if omitted, read
            from the labels.

    Raises:
        ValueError: A file is missing or malformed; the message names file and line.
    """
    path = Path(path)
    if path.is_dir():
        return _of_tables(path, target, undirected, seed, classes)
    if not path.is_file():
        raise ValueError(f"'path' must be a .pt or .graphml file, or a folder with nodes.csv and "
                         f"edges.csv (there is no {path})")
    if path.suffix == '.graphml':
        graphs, names = _of_graphml(path, target, undirected, classes)
    elif path.suffix == '.pt':
        graphs, names = _of_pt(path), None
    else:
        raise ValueError(f"'path' must end in .pt or .graphml, or be a folder (got {path})")
    has_masks = len(graphs) == 1 and all(f'{part}_mask' in graphs[0] for part in PARTS)
    parts = dict.fromkeys(PARTS, graphs) if has_masks else divided_graphs(graphs, seed)
    return graph_parts(str(path), parts, target, classes=names)


def _of_pt(path: Path) -> list[Data]:
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # pickle and zip raise anything
        reason = f'{type(error).__name__}: {str(error).splitlines()[0]:.200}'
        raise ValueError(f'{path}: not a file of PyG graphs ({reason}); write it by '
                         f'torch.save(list_of_data, path)') from error
    graphs = content if isinstance(content, list) else [content]
    for number, graph in enumerate(graphs):
        if not isinstance(graph, Data):
            kind = 'a HeteroData' if isinstance(graph, BaseData) else type(graph).__name__
            raise ValueError(f'{path}: expected a Data or a list of Data (entry {number} is '
                             f'{kind})')
        graph.y = graph.y.unsqueeze(0) if isinstance(graph.y, Tensor) and graph.y.dim() == 0 else (
            graph.y)
    if not graphs:
        raise ValueError(f'{path}: expected graphs (got an empty list)')
    return graphs


def _of_graphml(path: Path, target: Target | None, undirected: bool,
                classes: Sequence[str] | None) -> tuple[list[Data], tuple[str, ...] | None]:
    try:
        graph = nx.read_graphml(path, force_multigraph=True)
    except Exception as error:  # the parser raises anything
        raise ValueError(f'{path}: not GraphML ({type(error).__name__}: {error})') from error
    nodes = [{'node': str(name), **attributes} for name, attributes in graph.nodes(data=True)]
    edges = [{'source': str(source), 'target': str(end), **attributes}
             for source, end, attributes in graph.edges(data=True)]
    where = [f'{path}, node {row["node"]}' for row in nodes]
    tables = _Tables(_Rows(nodes, where), _Rows(edges, [f'{path}, edge {i + 1}'
                                                        for i in range(len(edges))]))
    labels, names = _targets(tables.nodes, 'label', target, classes, str(path))
    return [_graph(tables, labels, undirected or not graph.is_directed())], names


class _Rows(NamedTuple):
    """The rows of a table and where each stands in its file."""

    rows: list[dict[str, Any]]
    where: list[str]

    def of(self, graph: str) -> _Rows:
        chosen = [i for i, row in enumerate(self.rows) if str(row.get('graph', '')) == graph]
        return _Rows([self.rows[i] for i in chosen], [self.where[i] for i in chosen])


class _Tables(NamedTuple):
    nodes: _Rows
    edges: _Rows


def _of_tables(folder: Path, target: Target | None, undirected: bool, seed: int,
               classes: Sequence[str] | None) -> GraphParts:
    nodes, edges = (_table(folder / f'{name}.csv', needed) for name, needed in (
        ('nodes', ('node',)), ('edges', ('source', 'target'))))
    names = list(dict.fromkeys(str(row.get('graph', '')) for row in nodes.rows))
    unknown = next((i for i, row in enumerate(edges.rows)
                    if str(row.get('graph', '')) not in names), None)
    if unknown is not None:
        raise ValueError(f"{edges.where[unknown]}: no node of nodes.csv is in graph "
                         f"{edges.rows[unknown].get('graph', '')!r}")
    by_graph = (folder / 'graphs.csv').exists()
    owners = _table(folder / 'graphs.csv', ('graph', 'label')) if by_graph else nodes
    labels, class_names_ = _targets(owners, 'label', target, classes, str(folder))
    graphs, part_of = [], [_part(row, where) for row, where in zip(*owners)]
    number_of = {str(row['graph']): i for i, row in enumerate(owners.rows)} if by_graph else {}
    for name in names:
        own = _Tables(nodes.of(name), edges.of(name))
        if by_graph and name not in number_of:
            raise ValueError(f"{folder / 'graphs.csv'}: graph {name!r} of nodes.csv is missing")
        chosen = [number_of[name]] if by_graph else [
            i for i, row in enumerate(nodes.rows) if str(row.get('graph', '')) == name]
        graph = _graph(own, labels[chosen], undirected)
        own_parts = {part_of[i] for i in chosen}
        if not by_graph and len(names) == 1 and None not in own_parts:
            for part in PARTS:
                graph[f'{part}_mask'] = torch.tensor([part_of[i] == part for i in chosen])
        elif len(own_parts) > 1:
            raise ValueError(f"{folder / 'nodes.csv'}: graph {name!r} must be in one part (got "
                             f"{', '.join(map(str, sorted(map(str, own_parts))))})")
        graphs.append((graph, next(iter(own_parts))))
    if len(graphs) == 1 and 'train_mask' in graphs[0][0]:
        parts = {part: [graphs[0][0]] for part in PARTS}
    elif all(part is None for _, part in graphs):
        parts = divided_graphs([graph for graph, _ in graphs], seed)
    else:
        parts = {part: [graph for graph, own in graphs if own == part] for part in PARTS}
    return graph_parts(str(folder), parts, target, 'graph' if by_graph else 'node', class_names_)


def _table(path: Path, needed: tuple[str, ...]) -> _Rows:
    try:
        found = list(csv_rows(path))
    except OSError as error:
        raise ValueError(f'{path}: cannot be read ({error.strerror})') from error
    for name in needed:
        if found and name not in found[0][1]:
            raise ValueError(f"{path}: expected the columns {', '.join(needed)} (got "
                             f"{', '.join(found[0][1])})")
    if not found and 'node' in needed:
        raise ValueError(f'{path}: expected nodes (got an empty table)')
    return _Rows([row for _, row in found], [f'{path}, line {line}' for line, _ in found])


def _targets(table: _Rows, name: str, target: Target | None, classes: Sequence[str] | None,
             where: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return the labels as numbers of classes or as values, and the names of the classes."""
    labels = []
    for row, place in zip(*table):
        if row.get(name) in (None, ''):
            raise ValueError(f'{place}: expected a {name} (got none)')
        labels.append(str(row[name]).strip())
    numbers = [_number(label) for label in labels]
    if target is None and classes is None:
        is_real = all(number is not None for number in numbers) and any(
            not number.is_integer() for number in numbers)
        target = 'values' if is_real else 'classes'
    if target == 'values':
        for number, place, label in zip(numbers, table.where, labels):
            if number is None:
                raise ValueError(f'{place}: expected a number as the label (got {label!r:.40})')
        return torch.tensor(numbers), None
    names = class_names(labels, classes, where)
    return torch.from_numpy(class_numbers(labels, names, table.where.__getitem__)), names


def _graph(tables: _Tables, y: Tensor, undirected: bool) -> Data:
    number_of: dict[str, int] = {}
    for row, place in zip(*tables.nodes):
        if str(row['node']) in number_of:
            raise ValueError(f"{place}: node {row['node']!r} is repeated")
        number_of[str(row['node'])] = len(number_of)
    ends = []
    for row, place in zip(*tables.edges):
        for column in ('source', 'target'):
            if str(row[column]) not in number_of:
                raise ValueError(f'{place}: {row[column]!r} is not a node of the graph')
        ends.append([number_of[str(row['source'])], number_of[str(row['target'])]])
    edge_index = torch.tensor(ends, dtype=torch.int64).view(-1, 2).T
    edge_attr, x = _features(tables.edges), _features(tables.nodes)
    if undirected:
        is_loop = edge_index[0] == edge_index[1]
        edge_index = torch.cat([edge_index, edge_index[:, ~is_loop].flip(0)], dim=1)
        edge_attr = None if edge_attr is None else torch.cat([edge_attr, edge_attr[~is_loop]])
    return Data(x=x, edge_index=edge_index.contiguous(), edge_attr=edge_attr, y=y,
                num_nodes=len(number_of))


def _features(table: _Rows) -> Tensor | None:
    names = list(dict.fromkeys(name for row in table.rows for name in row if name not in _WORDS))
    if not names:
        return None
    values = torch.empty(len(table.rows), len(names))
    for i, (row, place) in enumerate(zip(*table)):
        for j, name in enumerate(names):
            number = _number(row.get(name))
            if number is None or not math.isfinite(number):
                raise ValueError(f"{place}: expected a finite number as {name!r} (got "
                                 f"{row.get(name)!r:.40})")
            values[i, j] = number
    return values


def _part(row: dict[str, Any], where: str) -> str | None:
    if row.get('part') in (None, ''):
        return None
    if row['part'] not in PART_OF:
        raise ValueError(f"{where}: expected a part out of {', '.join(PARTS)} (got "
                         f"{row['part']!r:.40})")
    return PART_OF[row['part']]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
