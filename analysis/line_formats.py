"""Line-based graph formats: adjacency lists, METIS, DIMACS, KONECT and Pajek."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np

from analysis.edge_lists import BLANKS, is_comment_line, read_edge_list
from analysis.listed import ListedGraph, as_edges, check_num_tokens, plain_numbers, weight_of
from graphattn.utils.reading import read_lines

_NO_COMMENT = '\0'  # networkx would cut names at a '#' if it were a comment mark
_KONECT = re.compile(r'%\s*(sym|asym|bip)\b')
_PAJEK_CELL = re.compile(r'"([^"]*)"|(\S+)')


def read_adjlist(path: Path) -> nx.DiGraph:
    """Read an adjacency list, which has a node and its neighbours on each line."""
    return nx.parse_adjlist(_data_lines(path), comments=_NO_COMMENT, create_using=nx.DiGraph)


def read_multiline_adjlist(path: Path) -> nx.DiGraph:
    """Read a multiline adjacency list.

    A line with a node and its degree is followed by a line for each neighbour.
    """
    lines = map(plain_numbers, _data_lines(path))
    return nx.parse_multiline_adjlist(lines, comments=_NO_COMMENT, create_using=nx.DiGraph)


def _data_lines(path: Path) -> Iterator[str]:
    return (line.strip(BLANKS) for _, line in read_lines(path)
            if line.strip(BLANKS) and not is_comment_line(line))


def read_metis(path: Path) -> ListedGraph:
    """Read a METIS file.

    Its first line has the numbers of nodes and edges. Line i after that lists the neighbours of
    node i. Nodes are counted from 1.

    Raises:
        ValueError: The file has another format.
    """
    everything = [line for _, line in read_lines(path)]
    lines = [line.split() for line in everything if not line.startswith('%')]
    header = list(map(int, lines[0])) if lines and all(map(str.isdecimal, lines[0])) else []
    if not 2 <= len(header) <= 4:
        raise ValueError("expected the numbers of nodes and edges on the first line of a METIS "
                         "file")
    num_nodes, num_edges, code, num_weights = (*header, *(0, 1)[len(header) - 2:])
    check_num_tokens(num_nodes)
    of_nodes = code // 100 % 10 + num_weights * (code // 10 % 10)
    step = 1 + code % 10
    rows = lines[1:num_nodes + 1]
    edges = as_edges([(node, int(other) - 1) for node, row in enumerate(rows)
                      for other in row[of_nodes::step]])
    num_more = sum(map(len, lines[num_nodes + 1:]))
    if (len(rows), len(edges), num_more) != (num_nodes, 2 * num_edges, 0):
        raise ValueError(f'expected {num_nodes:,} lines after the first line and '
                         f'{2 * num_edges:,} neighbours, because METIS lists each edge twice '
                         f'(got {len(lines) - 1:,} lines and {len(edges):,} neighbours)')
    weights = [weight_of(cell) for row in rows for cell in row[of_nodes + 1::step]]
    edges, first = np.unique(np.sort(edges, axis=1), axis=0, return_index=True)
    left_out = {'comment line{0}': len(everything) - len(lines),
                'size{0} or weight{0} of nodes': of_nodes * num_nodes}
    return _counted(edges, num_nodes, False, np.array(weights)[first] if step == 2 else None,
                    left_out=_told(left_out))


def _told(left_out: Mapping[str, int]) -> list[str]:
    return [f'{count:,} {what.format("s" * (count > 1))}'
            for what, count in left_out.items() if count]


def _counted(edges: np.ndarray, num_nodes: int, is_directed: bool,
             weights: np.ndarray | None = None, **options: object) -> ListedGraph:
    """Return the graph of ``edges`` between nodes that a file numbers from 1."""
    if edges.size and not 0 <= edges.min() <= edges.max() < num_nodes:
        raise ValueError(f"expected nodes of edges from 1 to {num_nodes:,}")
    return ListedGraph(np.arange(1, num_nodes + 1), edges, is_directed, weights, **options)


def read_dimacs(path: Path) -> ListedGraph:
    """Read a DIMACS file.

    After ``p edge``, the file has undirected edges ``e u v``. After ``p sp``, it has directed arcs
    ``a u v weight``.

    Raises:
        ValueError: The file has another format.
    """
    kind, num_nodes, ends, weights, left_out = None, 0, [], [], Counter()
    for number, line in read_lines(path):
        cells = line.split()
        try:
            match cells:
                case ['c', *_]:
                    left_out['comment line{0}'] += 1
                case ['p', ('edge' | 'edges' | 'col' | 'sp') as kind, nodes, _]:
                    num_nodes = int(nodes)
                    check_num_tokens(num_nodes)
                case ['e' | 'a', source, target, *weight] if kind and len(weight) < 2:
                    ends.append((int(source) - 1, int(target) - 1))
                    weights.append(weight_of(weight[0]) if weight else 1.)
                case ['n', *_]:
                    left_out['line{0} of nodes (n)'] += 1
                case []:
                    pass
                case _:
                    raise ValueError("expected a line that begins with c, p, n, e or a, followed "
                                     "by numbers")
        except ValueError as error:
            raise ValueError(f'line {number}, {line[:60].strip()!r}: {error}') from error
    if not kind:
        raise ValueError("expected a line 'p edge NODES EDGES' or 'p sp NODES ARCS' before the "
                         "edges")
    return _counted(as_edges(ends), num_nodes, kind == 'sp', np.array(weights),
                    left_out=_told(left_out))


def read_konect(path: Path) -> ListedGraph:
    """Read a KONECT file.

    The first line marks the edges as directed (``asym``), undirected (``sym``) or between two parts
    (``bip``). Each further line is an edge with an optional weight and time.
    """
    first = next((line for _, line in read_lines(path)), '')
    kind = _KONECT.match(first)
    if not kind:
        raise ValueError("expected '% sym', '% asym' or '% bip' on the first line of a KONECT file")
    listed = read_edge_list(path, header=False, max_columns=4, is_certain=True)
    listed.title = kind[1]
    listed.is_directed = kind[1] == 'asym'
    return _in_parts(listed) if kind[1] == 'bip' else listed


def _in_parts(listed: ListedGraph) -> ListedGraph:
    """Return a bipartite graph with separate nodes for its two parts, because the file numbers the
    nodes of each part from 1."""
    names, columns = [], []
    for part, column in zip(('left', 'right'), listed.edges.T):
        used, position = np.unique(column, return_inverse=True)
        columns.append(position + len(names))
        names += [f'{part} {listed.nodes[node]}' for node in used]
    parts = np.array([name.startswith('right') for name in names]).astype(int)
    return replace(listed, nodes=names, edges=np.stack(columns, axis=1), parts=parts)


def read_pajek(path: Path) -> ListedGraph:
    """Read a Pajek file.

    ``*Vertices`` come first, then directed ``*Arcs`` and undirected ``*Edges`` in any order. Nodes
    are counted from 1, and weights are optional.

    networkx is not used, because it reads arcs after edges as edges, and lists of neighbours as
    weights.

    Raises:
        ValueError: The file has another format, or contains several graphs or a matrix.
    """
    section, names, ends, weights, num_left, has_arcs = '', {}, [], [], None, False
    left_out = Counter()
    for number, line in read_lines(path):
        cells = [quoted or plain for quoted, plain in _PAJEK_CELL.findall(line)]
        try:
            if is_comment_line(line):
                left_out['comment line{0}'] += 1
            elif not cells or cells[0].lower() == '*network':
                continue
            elif cells[0].startswith('*'):
                section = _pajek_section(cells[0], is_first=not names)
                has_arcs |= section.startswith('*arcs')
                if section == '*vertices':
                    names = _pajek_nodes(cells)
                    num_left = int(cells[2]) if len(cells) > 2 else None
            elif section == '*vertices':
                names[_pajek_node(cells[0], names)] = cells[1] if len(cells) > 1 else cells[0]
                left_out['node{0} with coordinates or other words'] += len(cells) > 2
            else:
                found = _pajek_edges(section, cells, names)
                ends += found[0]
                weights += found[1]
                left_out['edge{0} with words after the weight'] += (
                    len(cells) > 3 and not section.endswith('list'))
        except (ValueError, IndexError) as error:
            raise ValueError(f'line {number}, {line[:60].strip()!r}: {error}') from error
    if not section:
        raise ValueError("expected a line '*Vertices' before the edges")
    parts = None if num_left is None else (np.arange(len(names)) >= num_left).astype(int)
    edges, weights = as_edges(ends) - 1, np.array(weights)
    if not has_arcs:  # both directions of each edge are listed, so the graph is undirected
        is_first = edges[:, 0] <= edges[:, 1]
        edges, weights = edges[is_first], weights[is_first]
    return ListedGraph(list(names.values()), edges, has_arcs, weights, parts,
                       left_out=_told(left_out))


def _pajek_section(mark: str, is_first: bool) -> str:
    section = mark.lower()
    if section not in ('*vertices', '*arcs', '*edges', '*arcslist', '*edgeslist'):
        raise ValueError("expected *Vertices, *Arcs or *Edges, or lists of arcs or edges; remove "
                         "the other sections of this Pajek file")
    if is_first != (section == '*vertices'):
        raise ValueError('expected a single *Vertices section, before the edges; keep one '
                         'network')
    return section


def _pajek_nodes(cells: list[str]) -> dict[int, str]:
    count = int(cells[1])
    check_num_tokens(count)
    return {node: str(node) for node in range(1, count + 1)}


def _pajek_node(cell: str, names: dict[int, str]) -> int:
    if not cell.isdecimal() or int(cell) not in names:
        raise ValueError(f"expected the number of a node, from 1 to {len(names):,} (got "
                         f"{cell[:20]})")
    return int(cell)


def _pajek_edges(section: str, cells: list[str],
                 names: dict[int, str]) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the edges in one line of a Pajek file, and their weights. An undirected edge is
    returned in both directions.

    Args:
        section: The section of the line, such as ``'*arcs'``.
        cells: The words of the line.
        names: The name of each node by its number.
    """
    is_list = section.endswith('list')
    nodes = [_pajek_node(cell, names) for cell in (cells if is_list else cells[:2])]
    source, targets = nodes[0], nodes[1:]
    if not targets:
        raise ValueError("expected two nodes on the line of an edge")
    weight = weight_of(cells[2]) if len(cells) > 2 and not is_list else 1.
    ends = [(source, target) for target in targets]
    if section.startswith('*edges'):
        ends += [(target, source) for target in targets if target != source]
    return ends, [weight] * len(ends)


