"""Edge lists in text files: the parser, and detection of separators, comments and header lines."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from analysis.listed import MAX_ID_LENGTH, ListedGraph, is_id, plain_numbers, weight_of
from graphattn.utils.reading import read_lines

BLANKS = ' \t\r\n'  # other blanks, such as no-break spaces, are part of names
COMMENT_MARKS = '#', '%'
_MAY_BEGIN_COMMENTS = ''.join(COMMENT_MARKS) + BLANKS
_SEPARATORS = {'\t': 'tabs', ';': 'semicolons', ',': 'commas', '|': 'bars', '->': 'arrows',
               ' ': 'blanks'}  # in order of preference
_OF_TABLES = list(_SEPARATORS)[:4]
_ROWS_AT_ONCE = 2**9  # too few rows to trigger Python's garbage collector
_SAMPLE = 100  # the number of lines, besides comments, that decide the separator
_ENDS = [tuple(pair.split()) for pair in (
    'source target', 'source destination', 'source dest', 'src dst', 'src dest', 'src target',
    'from to', 'key query', 'u v', 'id1 id2', 'node1 node2', 'nodea nodeb', 'start end',
    'fromnodeid tonodeid', 'fromid toid', 'fromnode tonode', 'sourceid targetid',
    'sourcenode targetnode', 'startid endid', 'startnode endnode', 'node1id node2id',
    'vertex1 vertex2', 'person1 person2', 'user1 user2', 'sender receiver', 'citing cited',
    'follower followee', 'tail head', 'subject object')]
_WEIGHTS = 'weight', 'weights', 'value', 'w', 'strength', 'count'
_COMMA, _SEMICOLON = re.compile(',$'), re.compile(';$')
_BRACKETS = re.compile(r'^(?:\(.*\)|\[.*\])$')
_ATTRIBUTES = re.compile(r"""(?<=[ \t,;|])\{(?:['"].*)?\}$""")  # as networkx writes them
_WRAPPINGS = _COMMA, _SEMICOLON, _BRACKETS, _ATTRIBUTES
_WEIGHT_ATTRIBUTE = re.compile(r"""['"]weight['"]: ([^,}]+)""")
_OTHER_LISTS = ('use --format adjlist if each line is a node and its neighbours, or --format '
                'metis for a METIS file')


@dataclass
class _Layout:
    """The layout of the lines of an edge list: the separator, the comment marks and the quotes.

    Attributes:
        separator (str): The separator of columns, a key of ``_SEPARATORS``.
        has_hashtags (bool): Whether names may begin with a comment mark.
        wrappings (list): Patterns of the text around the columns of every line, see ``_WRAPPINGS``.
    """

    separator: str
    has_hashtags: bool
    wrappings: list[re.Pattern]


@dataclass
class _Columns:
    """The indices of those columns of an edge list that contain edges.

    Attributes:
        ends (tuple): Indices of the source column and the target column.
        weight (int, optional): Index of the column of weights.
        most (int): Maximum number of columns of a line.
    """

    ends: tuple[int, int] = 0, 1
    weight: int | None = 2
    most: int = 3


def read_edge_list(path: Path, *, is_table: bool = False, header: bool | None = None,
                   numbered: bool | None = None, max_columns: int = 3,
                   is_certain: bool = False) -> ListedGraph:
    """Read the edges in a text file.

    Args:
        path: A text file, optionally compressed.
        is_table (bool): Whether the file is a table, in which blanks separate columns only if no
            other separator fits.
        header (bool, optional): Whether the first line names columns; detected if omitted.
        numbered (bool, optional): Whether all ids are numbers of tokens; if false, all ids are
            names. Detected if omitted.
        max_columns (int): Maximum number of columns without a header; columns after the weight are
            ignored.
        is_certain (bool): Whether to skip the check that the file is not another kind of list.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not an edge, or there are no edges.
    """
    lines = _Lines(path)
    layout = _layout([line for _, line in lines.sample], is_table)
    rows = _rows(lines, layout)
    first, second = next(rows, None), next(rows, None)
    if first is None:
        raise ValueError("the file contains no edges; write one edge on each line, as in '0 1'")
    has_header = _is_header(first[1], second and second[1]) if header is None else header
    columns = _columns(first[1]) if has_header else _Columns(most=max_columns)
    data = [row for row in (None if has_header else first, second) if row]
    if not data:
        raise ValueError("the file contains no edges; write one edge on each line, as in '0 1'")
    table = _Table(columns, numbered is not False and _are_ids(data[0][1], columns))
    for batch in _batches(chain(data, rows)):
        table.add(batch)
    if has_header and header is None and table.knows(first[1]):
        table.add([first])  # the words of the first line are also names of nodes in other lines
        has_header = False
    listed = table.listed()
    if table.are_ids and not is_certain:
        _check_other_readings(listed, lines, table)
    listed.title = (f'columns divided by {_SEPARATORS[layout.separator]}, '
                    + (f'header {_shown(first[1])!r}' if has_header else 'no header'))
    listed.left_out += _left_out(lines, first[1] if has_header else [], columns, max_columns)
    listed.hints += _hints(listed, first[1], header is None and not has_header)
    return listed


class _Lines:
    """The data lines of a file. Comment lines are skipped and counted.

    Attributes:
        number (int): Number of the last line read, from 1.
        num_comments (int): Number of comment lines.
    """

    def __init__(self, path: Path):
        self.number = self.num_comments = 0
        self._numbered = self._filled(path)
        self.sample = list(self._first())

    def _filled(self, path: Path) -> Iterator[tuple[int, str]]:
        number = 0
        for _, block in read_lines(path):
            for line in block.split('\r') if '\r' in block[:-2] else (block,):
                number += 1
                if line and not line.isspace():
                    yield number, line
        self.num_lines = number

    def _first(self) -> Iterator[tuple[int, str]]:
        """Yield lines from the beginning of the file, until ``_SAMPLE`` of the lines are certainly
        data."""
        num_plain = 0
        while num_plain < _SAMPLE and (numbered := next(self._numbered, None)):
            num_plain += not is_comment_line(numbered[1])
            yield numbered

    def data(self, layout: _Layout) -> Iterator[str]:
        """Yield the data lines of the file. Quoted names may contain line breaks."""
        is_quoted, may_be_quoted = False, layout.separator not in (' ', '->')
        for number, line in chain(self.sample, self._numbered):
            self.number = number
            if not is_quoted and line[0] in _MAY_BEGIN_COMMENTS and is_comment_line(
                    line, layout.has_hashtags):
                self.num_comments += 1
                continue
            was_quoted = is_quoted
            if may_be_quoted and '"' in line:
                is_quoted ^= line.count('"') % 2 == 1
            has_all = not (was_quoted or is_quoted)  # all columns of this row are on this line
            yield _bare(line, layout.wrappings) if layout.wrappings and has_all else line


def is_comment_line(line: str, has_hashtags: bool = False) -> bool:
    """Return whether a line of an edge list is a comment, which begins with ``#`` or ``%``. With
    ``has_hashtags``, names may begin with these marks too, and a comment is only a line in which a
    blank or the same mark follows."""
    begin = line.lstrip(BLANKS)[:2]
    if not begin.startswith(COMMENT_MARKS):
        return False
    return not has_hashtags or not begin[1:] or begin[1] in BLANKS or begin[1] in COMMENT_MARKS


# How columns are divided #############################################################


def _layout(sample: list[str], is_table: bool) -> _Layout:
    plain = [line for line in sample if not is_comment_line(line)]
    hashtags = [line for line in sample if not is_comment_line(line, True)]
    bare, wrappings = [line.strip(BLANKS) for line in plain or hashtags], []
    # the first line may be a header, and the last line may lack a comma
    for wrapping in _WRAPPINGS:
        if bare and all(map(wrapping.search, bare[1:-1] or bare)):
            wrappings.append(wrapping)
            bare = [_bare(line, [wrapping]) for line in bare]
    marks = list(_SEPARATORS)
    if is_table and any(_kind(line, mark) for line in bare for mark in _OF_TABLES):
        marks = _OF_TABLES
    kinds = {mark: Counter(_kind(line, mark) for line in bare) for mark in marks}
    separator = max(marks, key=lambda mark: (kinds[mark]['edge'], kinds[mark]['wide']))
    last_row = _split(bare[-1], separator)[:2] if bare else []
    return _Layout(separator, separator != ' ' and not all(map(is_id, last_row)), wrappings)


def _kind(line: str, separator: str) -> str:
    """Return what a line is if it is split at ``separator``: ``'edge'``, ``'wide'`` if it has more
    columns than an edge, or an empty string if it is neither."""
    cells = _split(line, separator)
    if len(cells) < 2 or not (cells[0] and cells[1]):
        return ''
    return 'edge' if len(cells) == 2 or len(cells) == 3 and _is_number(cells[2]) else 'wide'


def _split(line: str, separator: str) -> list[str]:
    """Return the columns of one line of an edge list."""
    if separator == ' ':
        return _divided_by_blanks(line)
    if separator == '->':
        return [cell.strip(BLANKS) for cell in line.split('->')]
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _divided_by_blanks(line: str) -> list[str]:
    cells = line.split() if line.isascii() else re.split('[ \t\r\n]+', line.strip(BLANKS))
    if '#' not in line:
        return cells
    comment = next((place for place in range(2, len(cells)) if cells[place][0] == '#'), None)
    return cells[:comment]


def _bare(line: str, wrappings: list[re.Pattern]) -> str:
    """Return a line of an edge list with only its columns.

    The text around the columns, such as brackets, is removed. Attributes such as ``{'weight': 2}``
    are replaced by the weight.

    Args:
        line: The line.
        wrappings: The patterns of text to remove, see ``_WRAPPINGS``.
    """
    text = line.strip(BLANKS)
    for wrapping in wrappings:
        if found := wrapping.search(text):
            text = _UNWRAP[wrapping](text, found)
    return text


def _without_brackets(text: str, found: re.Match) -> str:
    return ', '.join(cell if '{' in cell else cell.strip('\'"' + BLANKS)
                     for cell in text[1:-1].split(',', 2))


def _with_weight(text: str, found: re.Match) -> str:
    weight = _WEIGHT_ATTRIBUTE.search(plain_numbers(found[0]))
    return text[:found.start()] + (weight[1] if weight else '')


def _without_mark(text: str, found: re.Match) -> str:
    return text[:-1]


_UNWRAP = {_COMMA: _without_mark, _SEMICOLON: _without_mark, _BRACKETS: _without_brackets,
           _ATTRIBUTES: _with_weight}


def _rows(lines: _Lines, layout: _Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the columns of each data line."""
    texts = lines.data(layout)
    if layout.separator in (' ', '->'):
        rows = (_split(line, layout.separator) for line in texts)
    else:
        rows = csv.reader(texts, delimiter=layout.separator, skipinitialspace=True, strict=True)
    try:
        for row in rows:
            if any(row):
                yield lines.number, row
    except csv.Error as error:
        raise ValueError(f'line {lines.number}: {error}') from error


def _batches(rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        yield batch


# What the first line is ##############################################################


def _word(cell: str) -> str:
    return ''.join(filter(str.isalnum, cell.lower()))


def _named_ends(row: list[str]) -> tuple[int, int] | None:
    words = list(map(_word, row))
    return next(((words.index(source), words.index(target)) for source, target in _ENDS
                 if source in words and target in words), None)


def _is_header(first: list[str], second: list[str] | None) -> bool:
    if _named_ends(first):
        return True
    return bool(second) and _are_ids(second, _Columns()) and not any(map(_is_number, first[:2]))


def _is_number(cell: str) -> bool:
    try:
        weight_of(cell)
    except ValueError:
        return False
    return True


def _columns(header: list[str]) -> _Columns:
    words = list(map(_word, header))
    ends = _named_ends(header) or (0, 1)
    weight = next((words.index(word) for word in _WEIGHTS
                   if word in words and words.index(word) not in ends), None)
    return _Columns(ends, weight, max(len(header), 2))


def _are_ids(row: list[str], columns: _Columns) -> bool:
    return (len(row) > max(columns.ends)
            and all(is_id(row[end].strip(BLANKS)) for end in columns.ends))


# Columns of the whole file ###########################################################


class _Names(dict):
    """Dict from the name of a node to its position, in the order in which names first occur."""

    def __missing__(self, cell: str) -> int:
        if not cell or cell[0] in '+-.' and any(map(str.isdecimal, cell)):
            raise ValueError(f"expected a name or an id, an integer from 0 (got {cell[:20]!r})")
        self[cell] = position = len(self)
        return position


def _ids(cells: list[str]) -> list[int]:
    ids = list(map(int, cells))
    if min(ids) < 0 or max(ids) >= 10**MAX_ID_LENGTH or ''.join(map(str, ids)) != ''.join(cells):
        raise ValueError('not integers from 0 in canonical form')
    return ids


def _weights(cells: list[str]) -> list[float]:
    try:
        weights = list(map(float, cells))
    except ValueError:  # some ids are missing, or written in another notation
        return [weight_of(cell) if cell else 1. for cell in cells]
    return weights if math.isfinite(sum(weights)) else list(map(weight_of, weights))


class _Table:
    """The sources, targets and weights of the edges in all rows of an edge list. Rows are added in
    batches."""

    def __init__(self, columns: _Columns, are_ids: bool):
        self.columns, self.are_ids, self.names = columns, are_ids, _Names()
        self.ends, self.weights, self.num_cells, self.first = [], [], 0, None

    def add(self, batch: list[tuple[int, list[str]]]) -> None:
        rows = [row for _, row in batch]
        try:
            ends, weights = self._read(rows)
        except (ValueError, IndexError):
            for number, row in batch:
                self._check(number, row)
            raise
        self.first = self.first or rows[0]
        self.num_cells += sum(map(len, rows))
        self.ends.append(np.array(ends, dtype=np.int64).reshape(-1, 2))
        self.weights.append(np.array(weights))

    def _read(self, rows: list[list[str]]) -> tuple[list[int], list[float]]:
        source, target = self.columns.ends
        if max(map(len, rows)) > self.columns.most:
            raise ValueError("expected at most as many columns as in the first lines (got more)")
        cells = [cell.strip(BLANKS) for row in rows for cell in (row[source], row[target])]
        ends = _ids(cells) if self.are_ids else list(map(self.names.__getitem__, cells))
        weight = self.columns.weight
        if weight is None or max(map(len, rows)) <= weight:
            return ends, [1.] * len(rows)
        return ends, _weights([row[weight] if len(row) > weight else '' for row in rows])

    def _check(self, number: int, row: list[str]) -> None:
        where = f'line {number}, {_shown(row)!r}'
        if not max(self.columns.ends) < len(row) <= self.columns.most:
            raise ValueError(f'{where}: expected a source, a target and optionally a weight (got '
                             f'{len(row)} columns); {_OTHER_LISTS}')
        if self.are_ids and not _are_ids(row, self.columns):
            raise ValueError(f"{where}: expected two integers, as in the first edge; to read all "
                             f"ids as names, pass --numbered false")
        try:
            self._read([row])
        except ValueError as error:
            raise ValueError(f'{where}: {error}') from error

    def knows(self, row: list[str]) -> bool:
        """Return whether a word of ``row`` is also the name of a node in the rows that were
        added."""
        return not self.are_ids and any(row[end] in self.names for end in self.columns.ends)

    def listed(self) -> ListedGraph:
        edges, weights = np.concatenate(self.ends), np.concatenate(self.weights)
        nodes = list(self.names)
        if self.are_ids:
            nodes, positions = np.unique(edges, return_inverse=True)
            edges = positions.reshape(-1, 2)
        return ListedGraph(nodes, edges, True, weights)


# What was read #######################################################################


def _shown(row: list[str]) -> str:
    return ' '.join(row)[:60]


def _check_other_readings(listed: ListedGraph, lines: _Lines, table: _Table) -> None:
    """Raise an error if the file that was read as an edge list is probably another kind of list.

    A METIS file with few neighbours, and an adjacency list with two neighbours for each node, look
    like edge lists.
    """
    first, num_rows = [int(cell) for cell in table.first[:2]], len(listed.edges)
    if ([lines.num_lines - lines.num_comments - 1, table.num_cells - len(table.first)]
            == [first[0], 2 * first[1]] and num_rows > 1):
        raise ValueError("the file looks like a METIS file; to read METIS, pass --format metis, or "
                         "pass --format edges if it is a list of edges")
    source, target = listed.nodes[listed.edges.T]
    third = listed.weights
    if (table.num_cells == 3 * num_rows and len(set(third.tolist())) > 1
            and len(np.unique(source)) == num_rows and np.isin(third, listed.nodes).all()
            and (third != target).all()):
        raise ValueError("the lines may be nodes with two neighbours or edges with weights; pass "
                         "--format adjlist for nodes with neighbours, or --format edges for edges")


def _left_out(lines: _Lines, header: list[str], columns: _Columns, max_columns: int) -> list[str]:
    used = {*columns.ends, columns.weight}
    others = [cell for place, cell in enumerate(header) if place not in used]
    count = lines.num_comments
    return [*([f'{count:,} comment line{"s" * (count > 1)}'] if count else []),
            *([f'column{"s" * (len(others) > 1)} {", ".join(map(repr, others))[:60]}']
              if others else []),
            *(['times'] if max_columns > 3 else [])]


def _hints(listed: ListedGraph, first: list[str], may_be_header: bool) -> list[str]:
    hints = []
    if isinstance(listed.nodes, list):
        hashtags = sum(name.startswith(COMMENT_MARKS) for name in listed.nodes)
        if hashtags:
            hints.append(f'{hashtags:,} name{"s" * (hashtags > 1)} begin{"s" * (hashtags == 1)} '
                         f'with # or %')
        ends, others = listed.edges[0], listed.edges[1:]
        if may_be_header and len(others) and not np.isin(ends, others).any():
            hints.append(f'the first line, {_shown(first)!r}, shares no node with the other '
                         'lines; use --header true if it names columns')
    return hints

