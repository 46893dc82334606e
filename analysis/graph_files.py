"""Graphs in files: adjacency arrays, GraphML, GML, and lists of edges with weights and names."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch

from analysis.graphs import MOST_TOKENS
from graphattn import BipartiteGraph
from graphattn._reading import check_arrays, read_lines, read_text

HEADERS = ('source', 'target'), ('key', 'query'), ('from', 'to')


@dataclass(frozen=True)
class GraphFile:
    """What a file holds.

    Attributes:
        graph (BipartiteGraph): Which key each query attends to; of several blocks if the file holds
            several adjacency arrays.
        names (tuple of str, optional): Of the tokens, if they are not just numbers.
        has_weights (bool): Whether some edges have a weight other than 1, of which the graph keeps
            whether it is 0.
    """

    graph: BipartiteGraph
    names: tuple[str, ...] | None = None
    has_weights: bool = False


def read_graph_file(path: str | Path) -> GraphFile:
    """The graph in a file, with the names of its tokens.

    Args:
        path: By its ending, see :data:`READERS`:

            - ``.npz``: a scipy sparse array ``[query, key]`` as ``scipy.sparse.save_npz`` writes
              it, or adjacency arrays, each a block;
            - ``.npy``: an adjacency array ``[query, key]``, or ``[block, query, key]``. Entries
              other than 0 are edges;
            - ``.graphml`` and ``.gml``: a networkx graph, see
              :meth:`graphattn.BipartiteGraph.from_networkx`;
            - ``.csv`` and ``.tsv``: ``source,target`` or ``source,target,weight`` on each line,
              after a header or not. The source is the key and the target the query;
            - anything else: the same in columns that spaces divide, ``#`` before comments, with the
              attributes of edges or without, as ``networkx.write_edgelist`` writes them.

            Lists may be packed, ``.csv.gz``. Numbers in them count tokens from 0. If the first edge
            joins words, all are names, and tokens are numbered as they occur. An edge of weight 0
            is none.

    Raises:
        ValueError: There is no such file, or no graph in it, or it has too many tokens.
    """
    path = Path(path)
    ending = Path(path.stem if path.suffix == '.gz' else path.name).suffix
    try:
        return READERS.get(ending, _read_columns)(path)
    except Exception as error:  # whatever reading zip, arrays, XML and GML raises
        reason = str(error) or type(error).__name__
        raise ValueError(f"'graph' cannot be read: {path} ({reason})") from error


def read_graph(path: str | Path) -> BipartiteGraph:
    """The graph in a file, see :func:`read_graph_file`."""
    return read_graph_file(path).graph


# Arrays ##############################################################################


def _read_npz(path: Path) -> GraphFile:
    check_arrays(path)
    with np.load(path, allow_pickle=False) as arrays:
        if 'format' not in arrays:
            return _of_arrays({name: arrays[name] for name in arrays.files})
    matrix = sp.load_npz(path)
    _check_num_tokens(max(matrix.shape))
    _check_finite(path.name, matrix.data)
    return GraphFile(BipartiteGraph.from_scipy(matrix), has_weights=_are_weights(matrix.data))


def _read_npy(path: Path) -> GraphFile:
    return _of_arrays({path.name: np.load(path, mmap_mode='r', allow_pickle=False)})


def _of_arrays(arrays: dict[str, np.ndarray]) -> GraphFile:
    blocks, has_weights = [], False
    for name, values in arrays.items():
        if values.dtype.kind not in 'biuf' or values.ndim not in (2, 3):
            raise ValueError(f'{name} must be numbers [query, key] or [block, query, key] (got '
                             f'{values.dtype} of shape {values.shape})')
        _check_finite(name, values)
        _check_num_tokens(max(values.shape))
        has_weights |= _are_weights(values)
        for block in values if values.ndim == 3 else values[None]:
            blocks.append(BipartiteGraph.from_mask(torch.from_numpy(block != 0)))
    if not blocks:
        raise ValueError('it holds no arrays')
    return GraphFile(BipartiteGraph.batch(blocks), has_weights=has_weights)


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f'{name} holds entries that are no numbers or infinite; a mask that '
                         f'is added to logits is 0 where there is an edge')


def _are_weights(values: np.ndarray) -> bool:
    return bool(((values != 0) & (values != 1)).any())


# Formats of networkx #################################################################


def _read_graphml(path: Path) -> GraphFile:
    return _of_networkx(nx.parse_graphml(read_text(path)))


def _read_gml(path: Path) -> GraphFile:
    return _of_networkx(nx.parse_gml(read_text(path).splitlines(), label='id'))


def _of_networkx(graph: nx.Graph) -> GraphFile:
    _check_num_tokens(len(graph))
    names = tuple(_printable(str(data.get('label', node)))
                  for node, data in graph.nodes(data=True))
    parts = {data.get('bipartite') for _, data in graph.nodes(data=True)}
    weights = np.array([_weight(weight) for *_, weight in graph.edges(data='weight', default=1)])
    graph.remove_edges_from([edge for edge, weight in zip(list(graph.edges), weights)
                             if weight == 0])
    has_names = parts == {None} and names != tuple(map(str, range(len(names))))
    return GraphFile(BipartiteGraph.from_networkx(graph), names if has_names else None,
                     _are_weights(weights))


# Lists of edges ######################################################################


def _read_columns(path: Path) -> GraphFile:
    return _of_rows((number, _columns(line)) for number, line in read_lines(path))


def _columns(line: str) -> list[str]:
    """What spaces divide, and of the attributes that networkx writes in braces the weight."""
    text = line.partition('#')[0].rstrip()
    if not text.endswith('}'):
        return text.split()
    ends, _, attributes = text.partition('{')
    weight = re.search("'weight': ([^,}]+)", attributes)
    return [*ends.split(), *(weight.groups() if weight else ())]


def _separated_by(mark: str) -> Callable[[Path], GraphFile]:
    def read(path: Path) -> GraphFile:
        lines = (line for _, line in read_lines(path))
        rows = csv.reader(lines, delimiter=mark, skipinitialspace=True, strict=True)
        numbered = ((rows.line_num, [cell.strip() for cell in row]) for row in rows)
        return _of_rows((number, [] if row and row[0].startswith('#') else row)
                        for number, row in numbered)
    return read


def _of_rows(rows: Iterator[tuple[int, list[str]]]) -> GraphFile:
    rows = ((number, row) for number, row in rows if any(row))
    first = next(rows, None)
    if first and tuple(map(str.lower, first[1][:2])) in HEADERS:
        first = next(rows, None)
    if not first:
        raise ValueError('it holds no edges')
    number_of = _number if _are_numbers(first[1]) else _Names()
    ends, weights, others = array('q'), array('d'), 0
    for number, row in chain([first], rows):
        try:
            if len(row) not in (2, 3):
                raise ValueError('it is not a key and a query, with a weight or without')
            ends.extend(map(number_of, row[:2]))
            weights.append(_weight(row[2]) if len(row) == 3 else 1.)
            others += not _are_numbers(row)
        except ValueError as error:
            raise ValueError(f'line {number}, {" ".join(row)[:60]!r}: {error}') from error
    if others == 1 < len(weights):
        raise ValueError(f'line {first[0]} is neither two numbers, as all after it are, nor '
                         f'{" nor ".join(map(",".join, HEADERS))}: {" ".join(first[1])[:60]!r}')
    names = None if number_of is _number else tuple(number_of)
    ends, weights = np.array(ends).reshape(-1, 2), np.array(weights)
    edge_index = torch.from_numpy(ends[weights != 0].T.copy())
    num_tokens = len(names) if names else int(ends.max()) + 1
    return GraphFile(BipartiteGraph.from_edge_index(edge_index, num_tokens), names,
                     _are_weights(weights))


def _are_numbers(row: list[str]) -> bool:
    return all(map(str.isdecimal, row[:2]))


def _number(cell: str) -> int:
    if not cell.isdecimal() or len(cell) > 20 or int(cell) >= MOST_TOKENS:
        raise ValueError(f'{cell[:20]} is not the number of a token, from 0 and below '
                         f'{MOST_TOKENS:,}')
    return int(cell)


class _Names(dict):
    """The number of each name, in the order in which they occur."""

    def __call__(self, cell: str) -> int:
        if not cell or cell[0] in '+-.' and any(map(str.isdecimal, cell)):
            raise ValueError(f'{cell[:20]!r} is neither a name nor the number of a token, from 0')
        return self.setdefault(_printable(cell), len(self))


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError(f'the name {name[:20]!r} cannot be printed')
    return name


def _weight(cell: str | float) -> float:
    weight = float(cell)
    if not math.isfinite(weight):
        raise ValueError(f'a weight must be finite (got {cell})')
    return weight


def _check_num_tokens(count: int) -> None:
    if count > MOST_TOKENS:
        raise ValueError(f'{count:,} tokens, and at most {MOST_TOKENS:,} are read')


READERS: dict[str, Callable[[Path], GraphFile]] = {
    '.npz': _read_npz, '.npy': _read_npy, '.graphml': _read_graphml, '.gml': _read_gml,
    '.csv': _separated_by(','), '.tsv': _separated_by('\t')}
