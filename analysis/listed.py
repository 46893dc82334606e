"""Graphs as files list them: nodes with names or ids, and edges between the nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.graphs import MAX_TOKENS

MAX_ID_LENGTH = 18  # maximum number of digits that always fit an int64
_JOINERS = '\u200c\u200d'  # zero-width joiners are invisible, but they shape the adjacent letters
_NUMPY_NUMBER = re.compile(r'\bnp\.\w+\(([^()]*)\)', re.IGNORECASE)  # networkx capitalises GML


@dataclass
class ListedGraph:
    """The nodes and edges listed in a file, before tokens are assigned to the nodes.

    Attributes:
        nodes (sequence of str, or ndarray): Names of the nodes, or distinct integers.
        edges (ndarray): int64 ``[num_edges, 2]``, source and target as positions in ``nodes``.
        is_directed (bool): Whether edges are directed from source to target.
        weights (ndarray, optional): float64 ``[num_edges]``.
        parts (ndarray, optional): 0 or 1 for each node of a bipartite graph.
        title (str, optional): Details of the format, such as the header of the file.
        left_out (list of str): Descriptions of contents that were ignored.
        hints (list of str): Descriptions of contents that look like another format.
    """

    nodes: Sequence[str] | np.ndarray
    edges: np.ndarray
    is_directed: bool
    weights: np.ndarray | None = None
    parts: np.ndarray | None = None
    title: str = ''
    left_out: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)


def as_edges(ends: Sequence[Sequence[int]]) -> np.ndarray:
    """Return a list of pairs of numbers as edges, an int64 array ``[num_edges, 2]``."""
    return np.array(ends, dtype=np.int64).reshape(-1, 2)


def is_id(cell: str) -> bool:
    """Return whether a text is a non-negative integer without leading zeros or signs, so that it
    may be the id of a node."""
    return (cell.isdecimal() and cell.isascii() and len(cell) <= MAX_ID_LENGTH
            and (cell[0] != '0' or cell == '0'))


def as_tokens(
    nodes: Sequence[str] | np.ndarray, numbered: bool | None,
) -> tuple[np.ndarray, int, tuple[str, ...] | None]:
    """Assign a token to each node of a file.

    Args:
        nodes: Names, or distinct integers.
        numbered (bool, optional): Whether ids are indices of tokens, see
            :func:`analysis.graph_files.read_graph_file`.

    Returns:
        The index of each node's token, the number of tokens, and the names of the tokens, or
        ``None`` if tokens have no names.

    Raises:
        ValueError: The index of a token is too large, or ``numbered`` is true and an id is not a
            number.
    """
    check_num_tokens(len(nodes))
    ids = _distinct_ids(nodes)
    if numbered and ids is None:
        other = next((name for name in nodes if not is_id(name)), 'one of the ids twice')
        raise ValueError(f"'numbered' requires ids that are integers from 0 (got {other[:20]!r}); "
                         f"pass --numbered false to read ids as names")
    if ids is None or numbered is False:
        return np.arange(len(nodes)), len(nodes), tuple(map(printable, map(str, nodes)))
    if numbered:
        count = int(ids.max(initial=-1)) + 1
        check_num_tokens(count)
        return ids, count, None
    ordered, token = np.unique(ids, return_inverse=True)
    is_counted = bool((ordered == np.arange(len(ids))).all())
    return token, len(ids), None if is_counted else tuple(map(str, ordered.tolist()))


def _distinct_ids(nodes: Sequence[str] | np.ndarray) -> np.ndarray | None:
    if isinstance(nodes, np.ndarray):
        return nodes
    if not all(map(is_id, nodes)) or len(set(nodes)) < len(nodes):
        return None
    return np.array(list(map(int, nodes)), dtype=np.int64)


def check_num_tokens(count: int) -> None:
    """Raise an error if a graph has more than ``MAX_TOKENS`` tokens.

    Raises:
        ValueError: The graph has more than ``MAX_TOKENS`` tokens.
    """
    if count > MAX_TOKENS:
        raise ValueError(f'expected at most {MAX_TOKENS:,} tokens (got {count:,})')


def printable(name: str) -> str:
    """Return the name of a node in a form that prints on one line.

    Blanks and line breaks become single spaces, joiners are kept, and other unprintable characters
    are escaped.

    Raises:
        ValueError: The name has a control character, which occurs only in damaged files.
    """
    if name.isprintable():
        return name
    if any(char < ' ' and not char.isspace() or char == '\x7f' for char in name):
        raise ValueError(f"the name {name[:20]!r} cannot be printed; remove control characters "
                         f"from this name")
    return ''.join(char if char.isprintable() or char in _JOINERS
                   else char.encode('unicode_escape').decode() for char in ' '.join(name.split()))


def weight_of(cell: str | float) -> float:
    """Return the finite number in the text of a cell. Notations such as ``np.float64(1.0)`` and
    ``0,5`` are accepted.

    Raises:
        ValueError: The text is not a number, or not finite.
    """
    weight = float(plain_numbers(cell).replace(',', '.') if isinstance(cell, str) else cell)
    if not math.isfinite(weight):
        raise ValueError(f"expected a finite number as the weight of an edge (got {cell})")
    return weight


def plain_numbers(text: str) -> str:
    """Return a text in which numpy's number literals, such as ``np.float64(1.0)``, are replaced by
    Python's, such as ``1.0``."""
    return _NUMPY_NUMBER.sub(r'\1', text) if '(' in text else text
