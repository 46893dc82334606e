"""The user's own graphs, from ``.pt``, GraphML, or CSV tables of nodes and edges."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from experiments.data.graph_parts import PARTS, GraphParts, Target, allowing_graphs, graph_parts
from experiments.data.labels import class_names, class_numbers
from experiments.data.text.csv_rows import csv_rows
from experiments.data.what_was_read import tell, unread
from graphattn.utils.reading import load_tensors

PART_OF = {'train': 'train', 'val': 'val', 'dev': 'val', 'valid': 'val', 'test': 'test'}
# The columns that are not features. Labels and parts are of nodes, or of graphs in graphs.csv.
_ENDS, _OF_TARGETS = ('source', 'target'), ('label', 'part')
_NO_FEATURE = 'all other columns are features, so remove this column if it is none'


def own_graphs(path: Path, target: Target | None = None, undirected: bool = True, seed: int = 0,
               classes: Sequence[str] | None = None, split: int = 0) -> GraphParts:
    """Read graphs from a file or a folder; docs/own_data.md describes the formats."""
    path = Path(path)
    if path.is_dir():
        nodes, edges = _table(path / 'nodes.csv', 'node'), _table(path / 'edges.csv', *_ENDS)
        of_graphs = path / 'graphs.csv'
        graphs = _table(of_graphs, 'graph', 'label') if of_graphs.exists() else None
        return _of_tables(str(path), nodes, edges, graphs, target, undirected, seed, classes)
    if not path.is_file() or path.suffix not in ('.pt', '.graphml'):
        raise ValueError(f"'path' must be a .pt or .graphml file, or a folder with nodes.csv and "
                         f"edges.csv (got {path}{'' if path.exists() else ', which is missing'})")
    if path.suffix == '.graphml':
        nodes, edges, is_directed = _of_graphml(path)
        return _of_tables(str(path), nodes, edges, None, target, undirected or not is_directed,
                          seed, classes)
    return graph_parts(str(path), _of_pt(path), target, seed=seed, split=split,
                       classes=None if classes is None else tuple(classes))


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


class _Table(NamedTuple):
    """Rows with the name of their graph in the column ``graph``, and the place of each row."""

    file: str
    rows: list[dict[str, Any]]
    where: list[str]

    def features(self, others: Sequence[str]) -> list[str]:
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if name not in others]

    def rows_of_graphs(self) -> defaultdict[str, list[int]]:
        found = defaultdict(list)
        for number, row in enumerate(self.rows):
            found[row['graph']].append(number)
        return found


def _table(path: Path, *needed: str) -> _Table:
    try:
        found = list(csv_rows(path, used=needed + _OF_TARGETS if 'graph' in needed else None))
    except OSError as error:
        raise ValueError(f'{path}: cannot be read ({error.strerror}); a folder of graphs must '
                         'contain nodes.csv and edges.csv') from error
    columns = list(found[0][1]) if found else list(_ENDS)  # a graph may be without edges
    if not set(needed) <= set(columns):
        raise ValueError(f"{path}, line 1: expected rows with the columns {', '.join(needed)} (got "
                         f"{', '.join(columns) if found else 'no row'})")
    return _Table(str(path), [{**row, 'graph': row.get('graph', '').strip()} for _, row in found],
                  [f'{path}, line {line}' for line, _ in found])


def _of_graphml(path: Path) -> tuple[_Table, _Table, bool]:
    try:
        graph = nx.read_graphml(path, force_multigraph=True)
    except Exception as error:  # the parser raises anything
        raise ValueError(f"{path} cannot be read as GraphML ({type(error).__name__}: "
                         f"{error})") from error
    if not graph:
        raise ValueError(f'{path}: expected at least one node (got 0)')
    others = unread(graph.graph, ('node_default', 'edge_default'), 'attributes')
    if others:
        tell(path, '1 graph', others)
    tables = []
    for what, names, view in (('node', ('node',), graph.nodes), ('edge', _ENDS, graph.edges)):
        tables.append(_Table(str(path), [], []))
        for *ends, row in view(data=True):
            own = {'graph': '', **dict(zip(names, map(str, ends)))}
            where = f'{path}, {what} {" to ".join(map(str, ends))}'
            if taken := own.keys() & row.keys():
                raise ValueError(f"{where}: expected other attributes than {', '.join(taken)} (got "
                                 f"attributes of this name); rename them")
            tables[-1].rows.append(own | row)
            tables[-1].where.append(where)
    return *tables, graph.is_directed()


def _of_tables(about: str, nodes: _Table, edges: _Table, graphs: _Table | None,
               target: Target | None, undirected: bool, seed: int,
               classes: Sequence[str] | None) -> GraphParts:
    owners, level = (nodes, 'node') if graphs is None else (graphs, 'graph')
    y, names = _targets(owners, target, classes)
    words = ('graph', 'node', *(_OF_TARGETS if graphs is None else ()))
    features = nodes.features(words), edges.features(('graph', *_ENDS))
    tell(about, '; '.join(f'features of {kind}: {", ".join(map(repr, own)) or "none"}'
                          for kind, own in zip(('nodes', 'edges'), features)), {})
    edge_index = _edge_index(nodes, edges)
    x, edge_attr = (_values(table, own, _NO_FEATURE) if own else None
                    for table, own in zip((nodes, edges), features))
    if graphs is not None:
        _check_names(nodes, graphs)
    nodes_of, edges_of, rows_of = (table.rows_of_graphs() for table in (nodes, edges, owners))
    found = {name: Data(x=None if x is None else x[own], edge_index=edge_index[:, edges_of[name]],
                        edge_attr=None if edge_attr is None else edge_attr[edges_of[name]],
                        y=y[rows_of[name]], num_nodes=len(own))
             for name, own in nodes_of.items()}
    if undirected:
        for graph in found.values():
            _add_reverse(graph)
    return graph_parts(about, _divided(found, rows_of, owners, level == 'node'),
                       'values' if names is None else 'classes', level, names, seed)


def _targets(table: _Table, target: Target | None, classes: Sequence[str] | None
             ) -> tuple[Tensor, tuple[str, ...] | None]:
    if target == 'labels':
        raise ValueError(f"{table.file}: 'target' must be 'classes' or 'values' for tables (got "
                         f"'labels'); save graphs with several labels as .pt")
    labels = [str(row.get('label', '')).strip() for row in table.rows]
    if '' in labels:
        raise ValueError(f"{table.where[labels.index('')]}: expected a label in the column 'label' "
                         f"(got none); rename the column that has the labels, or save graphs "
                         f"without targets as .pt, with the class -100")
    numbers = list(map(_number, labels))
    if target is None and classes is None:
        is_real = None not in numbers and not all(map(float.is_integer, numbers))
        target = 'values' if is_real else 'classes'
    if target == 'values':
        return _values(table, ['label'], "for names, pass target='classes'").flatten(), None
    names = class_names(labels, classes, table.file)
    return torch.from_numpy(class_numbers(labels, names, table.where.__getitem__)), names


def _values(table: _Table, names: list[str], advice: str) -> Tensor:
    values = torch.empty(len(table.rows), len(names))
    for i, (row, where) in enumerate(zip(table.rows, table.where)):
        for j, name in enumerate(names):
            number = _number(row.get(name))
            if number is None or not math.isfinite(number):
                raise ValueError(f"{where}: expected a finite number in the column {name!r} (got "
                                 f"{row.get(name, '')!r:.40}); {advice}")
            values[i, j] = number
    return values


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _edge_index(nodes: _Table, edges: _Table) -> Tensor:
    place_of, ends = {}, []
    for name, rows in nodes.rows_of_graphs().items():
        for place, row in enumerate(rows):
            key = name, str(nodes.rows[row]['node'])
            if place_of.setdefault(key, place) != place:
                raise ValueError(f"{nodes.where[row]}: expected one line for each node (got "
                                 f"{key[1]!r} twice); remove one of the lines")
    for row, where in zip(edges.rows, edges.where):
        for end in _ENDS:
            name, node = row['graph'], str(row[end])
            if (name, node) not in place_of:
                raise ValueError(f"{where}: {end} {node!r} is not a node of the graph {name!r}; "
                                 f"add a line for this node, or remove the edge")
            ends.append(place_of[name, node])
    return torch.tensor(ends, dtype=torch.int64).view(-1, 2).T


def _add_reverse(graph: Data) -> None:
    """Add the reverse of each edge that lacks it; ToUndirected would join the features of both."""
    ahead, back = (source * graph.num_nodes + end
                   for source, end in (graph.edge_index, graph.edge_index.flip(0)))
    is_missing = ~torch.isin(back, ahead)
    graph.edge_index = torch.cat([graph.edge_index, graph.edge_index[:, is_missing].flip(0)], dim=1)
    if graph.edge_attr is not None:
        graph.edge_attr = torch.cat([graph.edge_attr, graph.edge_attr[is_missing]])


def _check_names(nodes: _Table, graphs: _Table) -> None:
    known, named = nodes.rows_of_graphs(), graphs.rows_of_graphs()
    for name, rows in named.items():
        if len(rows) > 1 or name not in known:
            raise ValueError(f"{graphs.where[rows[-1]]}: expected one line for each graph of "
                             f"nodes.csv (got {name!r}); remove this line")
    for name, rows in known.items():
        if name not in named:
            raise ValueError(f"{nodes.where[rows[0]]}: graph {name!r} is missing in graphs.csv; "
                             f"add a line for this graph")


def _divided(graphs: dict[str, Data], rows_of: dict[str, list[int]], owners: _Table,
             are_of_nodes: bool) -> dict[str, list[Data]] | list[Data]:
    """Divide graphs into parts, or mark the parts of one graph's nodes, if a row has a part."""
    given = [str(row.get('part', '')).strip() for row in owners.rows]
    if not any(given):
        return list(graphs.values())
    for name, where in zip(given, owners.where):
        if name not in PART_OF:
            raise ValueError(f"{where}: expected {', '.join(PARTS)} in the column 'part' (got "
                             f"{name!r:.40})")
    if len(graphs) == 1 and are_of_nodes:
        graph, = graphs.values()
        for part in PARTS:
            graph[f'{part}_mask'] = torch.tensor([PART_OF[name] == part for name in given])
        return [graph]
    parts = {part: [] for part in PARTS}
    for name, graph in graphs.items():
        first, *others = rows_of[name]
        for row in others:
            if PART_OF[given[row]] != PART_OF[given[first]]:
                raise ValueError(f"{owners.where[row]}: expected one part for all nodes of graph "
                                 f"{name!r} (got {given[first]} and {given[row]})")
        parts[PART_OF[given[first]]].append(graph)
    return parts
