"""Graphs that text files list: the nodes, and the edges between them, in lines."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.graphs import MAX_TOKENS
from graphattn.utils.reading import read_lines

if TYPE_CHECKING:
    import networkx as nx

_BLANKS = ' \t\r\n'  # other blanks, such as no-break spaces, are part of names
_MARKS = '#', '%'  # of comments
_SEPARATORS = {'\t': 'tabs', ';': 'semicolons', ',': 'commas', '|': 'bars', '->': 'arrows',
               ' ': 'blanks'}  # in order of preference
_OF_TABLES = list(_SEPARATORS)[:4]
_SAMPLE = 100  # the number of lines, besides comments, that decide the separator
_ENDS = [tuple(pair.split()) for pair in (
    'source target', 'source destination', 'source dest', 'src dst', 'src dest', 'src target',
    'from to', 'key query', 'u v', 'id1 id2', 'node1 node2', 'nodea nodeb', 'start end',
    'fromnodeid tonodeid', 'fromid toid', 'fromnode tonode', 'sourceid targetid',
    'sourcenode targetnode', 'startid endid', 'startnode endnode', 'node1id node2id',
    'vertex1 vertex2', 'person1 person2', 'user1 user2', 'sender receiver', 'citing cited',
    'follower followee', 'tail head', 'subject object')]
_WEIGHTS = 'weight', 'weights', 'value', 'w', 'strength', 'count'
# An edge with its attributes, by the separator that networkx was given.
_OF_NETWORKX = {None: re.compile(r'\S+[ \t]+\S+[ \t]+\{.*\}'), ',': re.compile('[^,]+,[^,]+,{.*}')}
_READ_ATTRIBUTES = 'weight', 'label', 'bipartite', 'id'
_WRAPPED = {'brackets': re.compile(r'^(\(.*\)|\[.*\]),?$'), 'semicolons': re.compile(';$'),
            'commas': re.compile(',$')}
_NUMPY_NUMBER = re.compile(r'\bnp\.\w+\(([^()]*)\)', re.IGNORECASE)  # networkx capitalises GML


@dataclass
class ListedGraph:
    """The nodes and edges listed in a file, before tokens are assigned to the nodes."""

    nodes: Sequence[str] | np.ndarray  # names, or distinct integers
    edges: np.ndarray  # int64 [num_edges, 2], source and target as positions in nodes
    is_directed: bool
    weights: np.ndarray | None = None
    parts: np.ndarray | None = None  # 0 or 1 for each node of a bipartite graph
    title: str = ''
    left_out: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    may_be_directed: bool = False  # whether the file does not say it
    is_listed_at_nodes: bool = False  # an edge may be listed at both of its nodes

    def __post_init__(self):
        if self.weights is None:
            self.weights = np.ones(len(self.edges))


def is_id(cell: str) -> bool:
    # without leading zeros or signs, and always within int64
    return (cell.isdecimal() and cell.isascii() and len(cell) <= 18
            and (cell[0] != '0' or cell == '0'))


def _weight_of(cell: str | float) -> float:
    """Return the finite number in a cell, which may be written ``np.float64(1.0)`` or ``0,5``."""
    try:
        weight = float(plain_numbers(cell).replace(',', '.') if isinstance(cell, str) else cell)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f'expected a finite number as the weight of an edge (got {cell})')
    return weight


def plain_numbers(text: str) -> str:
    """Return a text with Python's numbers in place of numpy's, such as ``np.float64(1.0)``."""
    return _NUMPY_NUMBER.sub(r'\1', text) if '(' in text else text


def check_num_tokens(count: int) -> None:
    if count > MAX_TOKENS:
        raise ValueError(f'expected at most {MAX_TOKENS:,} tokens (got {count:,})')


def check_declared(count: int, what: str, num_bytes: int) -> None:
    if count > 2**20 + 64 * num_bytes:
        raise ValueError(f'the file declares {count:,} {what}, more than its bytes can hold; check '
                         f'that the file is complete')


def _counted(count: int, what: str) -> list[str]:
    return [f'{count:,} {what.format("s" * (count > 1))}'] if count else []


def of_networkx(graph: nx.Graph) -> ListedGraph:
    check_num_tokens(len(graph))
    position = {node: place for place, node in enumerate(graph)}
    edges = np.array([(position[source], position[target]) for source, target in graph.edges()],
                     dtype=np.int64).reshape(-1, 2)
    weights = [_weight_of(weight) for *_, weight in graph.edges.data('weight', default=1)]
    parts = [str(part) for _, part in graph.nodes(data='bipartite')]
    labels = [str(node if label in (None, '') else label)
              for node, label in graph.nodes(data='label')]
    read = _READ_ATTRIBUTES
    if len(set(labels)) < len(labels):  # labels of classes, not names
        labels, read = [str(node) for node in graph], tuple(set(read) - {'label'})
    others = dict.fromkeys(
        name for view in (graph.nodes, graph.edges) for *_, attributes in view(data=True)
        for name in attributes if name not in read)
    return ListedGraph(labels, edges, graph.is_directed(), np.array(weights),
                       np.array(list(map(int, parts))) if set(parts) == {'0', '1'} else None,
                       left_out=[f'attributes {", ".join(others)}'] if others else [])


def _is_comment(line: str, has_hashtags: bool = False) -> bool:
    """Return whether a line is a comment, which begins with ``#`` or ``%``; if names begin so too,
    a blank or the same mark follows in a comment."""
    begin = line.lstrip(_BLANKS)[:2]
    if not begin.startswith(_MARKS):
        return False
    return not has_hashtags or not begin[1:] or begin[1] in _BLANKS or begin[1] in _MARKS


def read_edge_list(path: Path, *, is_table: bool, header: bool | None, numbered: bool | None,
                   is_certain: bool) -> ListedGraph:
    """Read the edges in a text file; options that are ``None`` are detected, and ``is_certain``
    skips the check that the file is not another kind of list."""
    lines, num_lines = _filled_lines(path)
    plain = [line.strip(_BLANKS) for _, line in lines if not _is_comment(line)]
    for separator, edge in _OF_NETWORKX.items():
        if plain and not header and all(map(edge.fullmatch, plain)):
            return _with_attributes(plain, separator, len(lines) - len(plain))
    split, separator, has_hashtags = _layout([line for _, line in lines], is_table)
    data = [(number, line) for number, line in lines if not _is_comment(line, has_hashtags)]
    table = [(number, cells) for number, line in data if any(cells := split(line, number))]
    has_header = bool(table) and _is_header(table) if header is None else header
    rows, num_comments = table[has_header:], len(lines) - len(data)
    if not rows:
        raise ValueError("the file contains no edges; write one edge on each line, as in '0 1'")
    first = table[0][1]
    columns = _columns(first) if has_header else (0, 1, 2, 3)
    are_ids = numbered is not False and _are_ids(rows[0][1], columns[:2])
    names, ends, weights = _edges(rows, columns, are_ids, separator)
    others = [repr(cell) for place, cell in enumerate(first)
              if has_header and place not in columns[:3]]
    listed = ListedGraph(
        names, ends, True, weights, may_be_directed=True,
        title=(f'columns divided by {_SEPARATORS[separator]}, '
               + (f'header {_shown(first)!r}' if has_header else 'no header')),
        left_out=[*_counted(num_comments, 'comment line{}'),
                  *([f'column{"s" * (len(others) > 1)} {", ".join(others)[:60]}'] if others
                    else [])],
        hints=_hints(names, ends, first, header is None and not has_header and not are_ids))
    if are_ids and not is_certain:
        _check_other_readings(listed, rows, num_lines - num_comments - has_header - 1)
    return listed


def read_adjlist(path: Path, is_multiline: bool = False) -> ListedGraph:
    import networkx as nx

    lines = [plain_numbers(line.strip(_BLANKS)) for _, line in read_lines(path)]
    data = [line for line in lines if line and not _is_comment(line)]
    delimiter, sample = None, ''.join(data[:_SAMPLE])
    if not is_multiline and '\t' in sample:
        delimiter = '\t'
        data = ['\t'.join(cell.strip(_BLANKS) for cell in line.split('\t')) for line in data]
    elif not is_multiline and any(mark in sample for mark in ',;|'):
        raise ValueError("the nodes of an adjacency list must be divided by blanks or tabs (got "
                         "commas, semicolons or bars); save the graph as GraphML, or divide them "
                         "by tabs")
    parse = nx.parse_multiline_adjlist if is_multiline else nx.parse_adjlist
    # networkx would cut names at a '#' if it were a comment mark
    graph = parse(iter(data), comments='\0', delimiter=delimiter, create_using=nx.DiGraph)
    listed, num_comments = of_networkx(graph), sum(map(_is_comment, lines))
    return replace(listed, is_directed=False, may_be_directed=True, is_listed_at_nodes=True,
                   left_out=[*_counted(num_comments, 'comment line{}'), *listed.left_out])


def _with_attributes(lines: list[str], separator: str | None, num_comments: int) -> ListedGraph:
    import networkx as nx

    # networkx would cut names at a '#' if it were a comment mark
    graph = nx.parse_edgelist(map(plain_numbers, lines), comments='\0', delimiter=separator,
                              create_using=nx.MultiDiGraph)
    listed = of_networkx(graph)
    return replace(listed, may_be_directed=True,
                   title=f'columns divided by {_SEPARATORS[separator or " "]}, no header',
                   left_out=[*_counted(num_comments, 'comment line{}'), *listed.left_out])


def _filled_lines(path: Path) -> tuple[list[tuple[int, str]], int]:
    found, number = [], 0
    for _, block in read_lines(path):
        for line in block.split('\r') if '\r' in block[:-2] else (block,):
            number += 1
            if line and not line.isspace():
                found.append((number, line))
    return found, number


def _layout(lines: list[str], is_table: bool) -> tuple[Callable, str, bool]:
    """Return a function that splits a line, the separator, and whether names may begin with a
    comment mark."""
    bare = [line.strip(_BLANKS) for line in lines if not _is_comment(line)][:_SAMPLE] or [
        line.strip(_BLANKS) for line in lines if not _is_comment(line, True)][:_SAMPLE]
    inner = bare[1:-1] or bare  # the first line may be a header
    marks = list(_SEPARATORS)
    if is_table and any(_kind(line, mark) for line in bare for mark in _OF_TABLES):
        marks = _OF_TABLES
    kinds = {mark: Counter(_kind(line, mark) for line in bare) for mark in marks}
    separator = max(marks, key=lambda mark: (kinds[mark]['edge'], kinds[mark]['wide']))
    for name, wrapped in _WRAPPED.items():
        if inner and name != _SEPARATORS[separator] and all(map(wrapped.search, inner)):
            raise ValueError(f"each line is in or ends with {name} ({inner[0][:60]!r}); remove "
                             f"them, so that a line is an edge such as '0 1'")

    def split(line: str, number: int) -> list[str]:
        try:
            return _split(line, separator)
        except csv.Error as error:  # a quoted name must end on its line
            raise ValueError(f'line {number}: {error}') from error

    last = _split(bare[-1], separator, strict=False)[:2] if bare else []
    return split, separator, separator != ' ' and not all(map(is_id, last))


def _kind(line: str, separator: str) -> str:
    cells = _split(line, separator, strict=False)
    if len(cells) < 2 or not (cells[0] and cells[1]):
        return ''
    return 'edge' if len(cells) == 2 or len(cells) == 3 and _is_number(cells[2]) else 'wide'


def _split(line: str, separator: str, strict: bool = True) -> list[str]:
    if separator == '->':
        return [cell.strip(_BLANKS) for cell in line.split('->')]
    if separator != ' ':
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=strict))
    cells = line.split() if line.isascii() else re.split('[ \t\r\n]+', line.strip(_BLANKS))
    comment = next((place for place in range(2, len(cells)) if cells[place][0] == '#'), None)
    return cells[:comment]


def _word(cell: str) -> str:
    return ''.join(filter(str.isalnum, cell.lower()))


def _named_ends(row: list[str]) -> tuple[int, int] | None:
    words = list(map(_word, row))
    return next(((words.index(source), words.index(target)) for source, target in _ENDS
                 if source in words and target in words), None)


def _is_header(rows: list[tuple[int, list[str]]]) -> bool:
    (_, first), others = rows[0], rows[1:]
    ends = _named_ends(first)
    if ends is None:
        return bool(others) and _are_ids(others[0][1], (0, 1)) and not any(
            map(_is_number, first[:2]))
    words = [first[end] for end in ends]  # which may also be names of nodes in other lines
    return not any(cells[end] in words for _, cells in others for end in ends if end < len(cells))


def _is_number(cell: str) -> bool:
    try:
        _weight_of(cell)
    except ValueError:
        return False
    return True


def _columns(header: list[str]) -> tuple[int, int, int | None, int]:
    """Return the columns of source, target and weight, and the maximum number of columns."""
    words, ends = list(map(_word, header)), _named_ends(header) or (0, 1)
    weight = next((words.index(word) for word in _WEIGHTS
                   if word in words and words.index(word) not in ends), None)
    return *ends, weight, max(len(header), 2)


def _are_ids(row: list[str], ends: tuple[int, int]) -> bool:
    return len(row) > max(ends) and all(is_id(row[end].strip(_BLANKS)) for end in ends)


def _edges(rows: list[tuple[int, list[str]]], columns: tuple[int, int, int | None, int],
           are_ids: bool, separator: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the names of the nodes in their order, the ends of the edges, and their weights."""
    source, target, weight, most = columns
    position, ends, weights = {}, array('q'), array('d')
    for number, cells in rows:
        try:
            if not max(source, target) < len(cells) <= most:
                raise ValueError(f'expected a source, a target and optionally a weight (got '
                                 f'{len(cells)} columns); use --format adjlist if each line is a '
                                 f'node and its neighbours')
            for name in cells[source].strip(_BLANKS), cells[target].strip(_BLANKS):
                if name not in position:
                    _check_name(name, are_ids)
                ends.append(position.setdefault(name, len(position)))
            has_weight = weight is not None and len(cells) > weight and cells[weight]
            weights.append(_weight_of(cells[weight]) if has_weight else 1.)
        except ValueError as error:
            cure = ('; if names have blanks, divide the columns by commas or tabs'
                    if separator == ' ' and len(cells) > 2 else '')
            raise ValueError(f'line {number}, {_shown(cells)!r}: {error}{cure}') from error
    return list(position), np.array(ends, dtype=np.int64).reshape(-1, 2), np.array(weights)


def _check_name(name: str, are_ids: bool) -> None:
    if are_ids and not is_id(name):
        raise ValueError('expected two integers, as in the first edge; to read all ids as names, '
                         'pass --numbered false')
    if not name or name[0] in '+-.' and any(map(str.isdecimal, name)):
        raise ValueError(f'expected a name or an id, an integer from 0 (got {name[:20]!r})')


def _shown(row: list[str]) -> str:
    return ' '.join(row)[:60]


def _check_other_readings(listed: ListedGraph, rows: list[tuple[int, list[str]]],
                          num_others: int) -> None:
    """Refuse lists of another kind that look like edges: METIS files with few neighbours, and
    adjacency lists with two neighbours for each node."""
    num_cells, first = sum(len(cells) for _, cells in rows), rows[0][1]
    if len(rows) > 1 and [num_others, num_cells - len(first)] == [int(first[0]), 2 * int(first[1])]:
        raise ValueError("the file looks like a METIS file, which is not supported; pass --format "
                         "edges if it is a list of edges")
    source, target = np.array(list(map(int, listed.nodes)))[listed.edges].T
    third = listed.weights
    if (num_cells == 3 * len(rows) and len(set(third.tolist())) > 1
            and len(np.unique(source)) == len(rows) and np.isin(third, [source, target]).all()
            and (third != target).all()):
        raise ValueError("the lines may be nodes with two neighbours or edges with weights; pass "
                         "--format adjlist for nodes with neighbours, or --format edges for edges")


def _hints(names: list[str], ends: np.ndarray, first: list[str], may_be_header: bool) -> list[str]:
    hashtags = sum(name.startswith(_MARKS) for name in names)
    hints = [f'{hashtags:,} name{"s" * (hashtags > 1)} begin{"s" * (hashtags == 1)} with # or %'
             ] if hashtags else []
    if may_be_header and len(ends) > 1 and not np.isin(ends[0], ends[1:]).any():
        hints.append(f'the first line, {_shown(first)!r}, shares no node with the other lines; '
                     f'use --header true if it names columns')
    return hints
