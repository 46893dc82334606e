"""Graphs in files: adjacency arrays, formats of networkx and of other programs, and lists of edges.

What a file holds is never guessed in silence: :attr:`GraphFile.said` tells how it was read, and a
file that looks like another format is read as that or refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Literal

import networkx as nx
import numpy as np
import scipy.io
import scipy.sparse as sp
import torch

from analysis.edge_lists import read_edge_list
from analysis.line_formats import (
    read_adjlist,
    read_dimacs,
    read_konect,
    read_metis,
    read_multiline_adjlist,
    read_pajek,
)
from analysis.listed import (
    ListedGraph,
    as_edges,
    as_tokens,
    check_num_tokens,
    plain_numbers,
    weight_of,
)
from graphattn import BipartiteGraph
from graphattn.utils.reading import check_arrays, read_bytes, read_lines, read_text

Format = Literal['edges', 'adjlist', 'multiline_adjlist', 'graphml', 'gml', 'gexf', 'pajek',
                 'metis', 'dimacs', 'konect', 'matrix_market', 'graph6', 'sparse6', 'npz', 'npy']
Direction = Literal['directed', 'undirected']
ENDINGS: dict[str, Format] = {
    '.csv': 'edges', '.tsv': 'edges', '.npz': 'npz', '.npy': 'npy', '.graphml': 'graphml',
    '.gml': 'gml', '.gexf': 'gexf', '.net': 'pajek', '.mtx': 'matrix_market', '.g6': 'graph6',
    '.s6': 'sparse6', '.adjlist': 'adjlist', '.metis': 'metis', '.col': 'dimacs'}
_TITLES = {
    'edges': 'list of edges', 'adjlist': 'adjacency list',
    'multiline_adjlist': 'multiline adjacency list', 'graphml': 'GraphML', 'gml': 'GML',
    'gexf': 'GEXF', 'pajek': 'Pajek', 'metis': 'METIS', 'dimacs': 'DIMACS', 'konect': 'KONECT',
    'matrix_market': 'Matrix Market', 'graph6': 'graph6', 'sparse6': 'sparse6', 'npz': 'arrays',
    'npy': 'an array'}
# How files begin whose ending says nothing; lists of edges begin like none of these.
_BEGINNINGS: dict[str, Format] = {
    r'%%MatrixMarket': 'matrix_market', r'>>graph6<<': 'graph6', r'>>sparse6<<': 'sparse6',
    r'%\s*(sym|asym|bip)\b': 'konect', r'\*(network|vertices)\b': 'pajek',
    r'(c\b[^\n]*\n\s*)*p\s+(edge|edges|col|sp)\s+\d+\s+\d+\s*$': 'dimacs',
    r'<[\s\S]*<graphml\b': 'graphml', r'<[\s\S]*<gexf\b': 'gexf',
    r'((Creator\b|Version\b|comment\b|#)[^\n]*\n\s*)*graph\s*\[': 'gml',
    r'#.*\n# GMT .*\n#.*\n[\s\S]*\}\s*$': 'multiline_adjlist',
    r'#.*\n# GMT .*\n#': 'adjlist'}
_REFUSED = {
    r'(strict\s+)?(di)?graph\b[^\n\[]*\{': 'DOT of Graphviz', r'[\[{]\s*["\[{(]': 'JSON',
    r'dl\s+n\s*=': 'DL of UCINET', r'<(\?xml|!|html\b)': 'XML or HTML',
    r'PK\x03\x04': 'Excel or another archive'}
_SNIFFED = 100  # lines


@dataclass(frozen=True)
class GraphFile:
    """The content of a graph file.

    Attributes:
        graph (BipartiteGraph): Which key each query attends to; of several segments if the file
            holds several adjacency arrays.
        names (tuple of str, optional): Of the tokens, if they are not just numbers.
        has_weights (bool): Whether some edges have a weight other than 1, of which the graph keeps
            whether it is 0.
        said (str): How the file was read, in one line.
    """

    graph: BipartiteGraph
    names: tuple[str, ...] | None = None
    has_weights: bool = False
    said: str = ''


def read_graph_file(
    path: str | Path,
    *,
    format: Format | None = None,
    header: bool | None = None,
    numbered: bool | None = None,
    edges: Direction | None = None,
    bipartite: bool = False,
) -> GraphFile:
    """Read the graph in a file, with the names of its tokens.

    The source of an edge is the key and its target the query. An edge of weight 0 is none, and one
    that is listed again counts once. In lists of edges, a line that begins with ``#`` or ``%`` is a
    comment. Where names divided by commas, semicolons or tabs begin so, a comment has a blank or
    the same mark behind it.

    Args:
        path: A file, which may be packed (``.gz``).
        format: How to read it. If omitted, the ending of its name decides, or else how it begins.
        header: Whether the first line of a list of edges names columns. If omitted, it does if
            its words are usual (``source,target``), or if all other lines join numbers.
        numbered: Whether ids are the numbers of tokens, so that a gap is a token without
            edges. If omitted, ids are names unless they are 0 to n - 1. If false, they are names,
            and some may be words.
        edges: Whether an edge counts from source to target alone. If omitted, as the format has
            it: a list of edges is directed, an adjacency list is not.
        bipartite: Whether nodes with the attribute ``bipartite`` 0 are keys and those with 1
            queries. If false, each node is a token, which is both.

    Raises:
        ValueError: There is no such file, or no graph in it, or it has too many tokens.
    """
    path = Path(path)
    try:
        if path.is_fifo() and format in (None, 'konect'):
            raise ValueError('a pipe can be read only once, so its format cannot be detected: '
                             '--format says what it holds')
        chosen = format or _format_of(path)
        if header is not None and chosen != 'edges':
            raise ValueError(f"'header' is for lists of edges, and this is {_TITLES[chosen]}")
        if chosen in _MATRICES:
            if (numbered, edges, bipartite) != (None, None, False):
                raise ValueError("'numbered', 'edges' and 'bipartite' are for nodes, which an "
                                 "array has not")
            return _MATRICES[chosen](path)
        if chosen == 'edges':
            listed = read_edge_list(
                path, is_table=_ending(path) in ('.csv', '.tsv'), header=header, numbered=numbered,
                is_certain=format == 'edges')
        else:
            listed = _LISTS[chosen](path)
        return _graph_file(listed, chosen, numbered, edges, bipartite)
    except Exception as error:  # whatever reading zip, arrays, XML and GML raises
        reason = str(error) or type(error).__name__
        raise ValueError(f"'graph' cannot be read: {path} ({reason})") from error


def read_graph(path: str | Path) -> BipartiteGraph:
    """Read the graph in a file, see :func:`read_graph_file`."""
    return read_graph_file(path).graph


# Which format ########################################################################


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix == '.gz' else path.name).suffix.lower()


def _format_of(path: Path) -> Format:
    """Return the format that a file's ending names, or its beginning.

    Raises:
        ValueError: It begins like a format that is not read.
    """
    named = ENDINGS.get(_ending(path), 'edges')
    if named != 'edges':
        return named
    beginning = ''.join(line for _, line in islice(read_lines(path), _SNIFFED)).lstrip()
    for pattern, found in _BEGINNINGS.items():
        if re.match(pattern, beginning, re.IGNORECASE | re.MULTILINE):
            return found
    for pattern, other in _REFUSED.items():
        if re.match(pattern, beginning, re.IGNORECASE):
            raise ValueError(f'it looks like {other}, which is not read: save it as GraphML or '
                             f'CSV; --format edges reads it as a list of edges')
    return 'edges'


# From nodes to tokens ################################################################


def _graph_file(listed: ListedGraph, chosen: Format, numbered: bool | None,
                edges: Direction | None, bipartite: bool) -> GraphFile:
    if edges == 'directed' and not listed.is_directed and chosen not in _SAY_NO_DIRECTION:
        raise ValueError(f"'edges' cannot be directed, because {_TITLES[chosen]} says that these "
                         f"are not")
    is_directed = edges == 'directed' or listed.is_directed and edges is None
    weights = np.ones(len(listed.edges)) if listed.weights is None else listed.weights
    ends = listed.edges[weights != 0]
    if bipartite:
        graph, names = _of_parts(listed, ends, is_directed), None
    else:
        token, num_tokens, names = as_tokens(listed.nodes, numbered)
        ends = token[ends].reshape(-1, 2)
        ends = ends if is_directed else np.concatenate([ends, ends[:, ::-1]])
        graph = BipartiteGraph.from_edge_index(torch.from_numpy(ends.T.copy()), num_tokens)
    has_weights = _are_weights(weights)
    said = _said(listed, chosen, graph, is_directed, has_weights, names, bipartite)
    return GraphFile(graph, names, has_weights, said)


def _of_parts(listed: ListedGraph, ends: np.ndarray, is_directed: bool) -> BipartiteGraph:
    """Return the graph whose keys are the nodes of part 0 and whose queries those of part 1."""
    if listed.parts is None:
        raise ValueError("'bipartite' asks for nodes that all have the attribute bipartite, 0 or 1")
    part = listed.parts[ends]
    if not is_directed:
        ends = np.where(part[:, :1] > part[:, 1:], ends[:, ::-1], ends)
        part = np.sort(part, axis=1)
    if (part != [0, 1]).any():
        raise ValueError("'bipartite' asks for edges from part 0 to part 1, and one is another")
    place = np.where(listed.parts == 0, np.cumsum(listed.parts == 0),
                     np.cumsum(listed.parts == 1)) - 1
    num_keys, num_queries = np.bincount(listed.parts, minlength=2).tolist()
    return BipartiteGraph.from_edge_index(torch.from_numpy(place[ends].reshape(-1, 2).T.copy()),
                                          num_queries, num_keys)


def _said(listed: ListedGraph, chosen: Format, graph: BipartiteGraph, is_directed: bool,
          has_weights: bool, names: tuple[str, ...] | None, bipartite: bool) -> str:
    """Say in one line how a list of edges was read."""
    weights = np.ones(len(listed.edges)) if listed.weights is None else listed.weights
    num_zero = int((weights == 0).sum())
    num_edges = _count(graph, is_directed or bipartite)
    num_repeated = len(weights) - num_zero - num_edges
    left_out = [*listed.left_out,
                *([f'{num_zero:,} of weight 0'] if num_zero else []),
                *([f'{num_repeated:,} repeated'] if num_repeated else [])]
    hints = [*listed.hints]
    if listed.parts is not None and not bipartite:
        hints.append('its two parts are not told apart: --bipartite true takes part 0 for keys and '
                     'part 1 for queries')
    ids = ('part 0 are keys and part 1 queries' if bipartite else 'ids are numbers of tokens'
           if names is None else f'ids are names, such as {names[0]!r}')
    title = _TITLES[chosen] + (f', {listed.title}' if listed.title else '')
    return '; '.join([
        f'{title}: {_sizes(graph, num_edges, bipartite)}',
        f'{"directed" if is_directed else "undirected"}, {_of_weights(has_weights)}, {ids}',
        *([f'left out: {", ".join(left_out)}'] if left_out else []), *hints])


def _count(graph: BipartiteGraph, is_directed: bool) -> int:
    """Count edges; of an undirected graph two that are each other's reverse are one."""
    loops = 0 if is_directed else int((graph.key == graph.query).sum())
    return graph.num_edges if is_directed else (graph.num_edges + loops) // 2


def _sizes(graph: BipartiteGraph, num_edges: int, has_parts: bool = False) -> str:
    has_keys, has_queries = graph.in_degree() > 0, graph.out_degree() > 0
    edges = f'{num_edges:,} edge{"s" * (num_edges != 1)}'
    if has_parts or graph.num_queries != graph.num_keys:
        isolated = int((~has_keys).sum()) + int((~has_queries).sum())
        return (f'{graph.num_keys:,} keys and {graph.num_queries:,} queries '
                f'({isolated:,} isolated), {edges}')
    isolated = int((~(has_keys | has_queries)).sum())
    return (f'{graph.num_queries:,} node{"s" * (graph.num_queries != 1)} ({isolated:,} isolated), '
            f'{edges}')


def _of_weights(has_weights: bool) -> str:
    return ('weights (what is asked is which edges there are, whatever their weight)' if has_weights
            else 'no weights')


# Arrays ##############################################################################


def _read_npz(path: Path) -> GraphFile:
    check_arrays(path)
    with np.load(path, allow_pickle=False) as arrays:
        if 'format' not in arrays:
            return _of_arrays({name: arrays[name] for name in arrays.files})
    return _of_matrix(sp.load_npz(path), path.name, 'sparse array of scipy')


def _read_matrix_market(path: Path) -> GraphFile:
    content = read_bytes(path, max_bytes=_MAX_GRAPH)
    rows, columns, entries, *_ = scipy.io.mminfo(BytesIO(content))
    check_num_tokens(max(rows, columns))
    if entries > len(content):  # each takes a line or, of a dense matrix, a number
        raise ValueError(f'it says that it has {entries:,} entries, and has {len(content):,} bytes')
    matrix = sp.coo_array(scipy.io.mmread(BytesIO(content), spmatrix=False))
    return _of_matrix(matrix, path.name, _TITLES['matrix_market'])


def _of_matrix(matrix: sp.sparray | sp.spmatrix, name: str, title: str) -> GraphFile:
    check_num_tokens(max(matrix.shape))
    _check_finite(name, matrix.data)
    graph, has_weights = BipartiteGraph.from_scipy(matrix), _are_weights(matrix.data)
    return GraphFile(graph, None, has_weights, _said_of_matrix(title, graph, has_weights))


def _read_npy(path: Path) -> GraphFile:
    return _of_arrays({path.name: np.load(path, mmap_mode='r', allow_pickle=False)})


def _of_arrays(arrays: dict[str, np.ndarray]) -> GraphFile:
    segments, has_weights = [], False
    for name, values in arrays.items():
        if values.dtype.kind not in 'biuf' or values.ndim not in (2, 3):
            raise ValueError(f'{name} must be numbers [query, key] or [segment, query, key] (got '
                             f'{values.dtype} of shape {values.shape})')
        _check_finite(name, values)
        check_num_tokens(max(values.shape))
        has_weights |= _are_weights(values)
        for segment in values if values.ndim == 3 else values[None]:
            segments.append(BipartiteGraph.from_mask(torch.from_numpy(segment != 0)))
    if not segments:
        raise ValueError('it holds no arrays')
    title = ('adjacency array' if len(segments) == 1
             else f'{len(segments):,} adjacency arrays, together')
    graph = BipartiteGraph.batch(segments)
    return GraphFile(graph, None, has_weights, _said_of_matrix(title, graph, has_weights))


def _said_of_matrix(title: str, graph: BipartiteGraph, has_weights: bool) -> str:
    return (f'{title}: {_sizes(graph, graph.num_edges)}; directed, rows are queries and columns '
            f'keys, {_of_weights(has_weights)}')


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f'{name} holds entries that are no numbers or infinite; a mask that '
                         f'is added to logits is 0 where there is an edge')


def _are_weights(values: np.ndarray) -> bool:
    return bool(((values != 0) & (values != 1)).any())


# Formats of networkx #################################################################


def _read_graphml(path: Path) -> nx.Graph:
    content = read_bytes(path, max_bytes=_MAX_GRAPH)
    if len(re.findall(rb'<(?:\w+:)?graph[\s/>]', content)) > 1:
        raise ValueError('it holds several graphs, or groups of nodes, which have to be dissolved')
    return nx.read_graphml(BytesIO(content))


def _read_gexf(path: Path) -> nx.Graph:
    return nx.read_gexf(BytesIO(read_bytes(path, max_bytes=_MAX_GRAPH)))


def _read_gml(path: Path) -> nx.Graph:
    text = plain_numbers(read_text(path, max_bytes=_MAX_GRAPH))
    text = re.sub(r'\bgraph\s*\[', r'\g<0> multigraph 1 ', text, count=1)  # edges may repeat
    return nx.parse_gml(text.splitlines(), label='id')


def _read_graph6(path: Path) -> nx.Graph:
    return _one_graph(path, nx.from_graph6_bytes)


def _read_sparse6(path: Path) -> nx.Graph:
    return _one_graph(path, nx.from_sparse6_bytes)


def _one_graph(path: Path, parse: Callable[[bytes], nx.Graph]) -> nx.Graph:
    lines = read_bytes(path).split()
    if len(lines) != 1:
        raise ValueError(f'it holds {len(lines)} graphs; keep one line')
    return parse(lines[0])


def _networkx(read: Callable[[Path], nx.Graph]) -> Callable[[Path], ListedGraph]:
    return lambda path: _of_networkx(read(path))


def _of_networkx(graph: nx.Graph) -> ListedGraph:
    check_num_tokens(len(graph))
    position = {node: place for place, node in enumerate(graph)}
    edges = as_edges([(position[source], position[target]) for source, target in graph.edges()])
    weights = [weight_of(weight) for *_, weight in graph.edges.data('weight', default=1)]
    parts = [str(part) for _, part in graph.nodes(data='bipartite')]
    labels = [str(node if label in (None, '') else label)
              for node, label in graph.nodes(data='label')]
    return ListedGraph(labels, edges, graph.is_directed(), np.array(weights),
                       np.array(list(map(int, parts))) if set(parts) == {'0', '1'} else None)


_MAX_GRAPH = 2**28  # bytes of a file that is read as a whole
_SAY_NO_DIRECTION = 'edges', 'adjlist', 'multiline_adjlist'
_MATRICES: dict[str, Callable[[Path], GraphFile]] = {
    'npz': _read_npz, 'npy': _read_npy, 'matrix_market': _read_matrix_market}
_LISTS: dict[str, Callable[[Path], ListedGraph]] = {
    'adjlist': _networkx(read_adjlist), 'multiline_adjlist': _networkx(read_multiline_adjlist),
    'graphml': _networkx(_read_graphml), 'gml': _networkx(_read_gml),
    'gexf': _networkx(_read_gexf), 'graph6': _networkx(_read_graph6),
    'sparse6': _networkx(_read_sparse6), 'pajek': read_pajek, 'metis': read_metis,
    'dimacs': read_dimacs, 'konect': read_konect}
