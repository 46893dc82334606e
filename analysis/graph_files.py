"""Graph files: adjacency arrays, formats of networkx, and edge lists.

The text :attr:`GraphFile.said` describes how a file was read, so that no format is guessed
silently. If the contents of a file look like another format than its name says, the file is read in
that format, or an error names the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch

from analysis.edge_lists import (
    ListedGraph,
    check_declared,
    check_num_tokens,
    is_id,
    of_networkx,
    plain_numbers,
    read_adjlist,
    read_edge_list,
)
from graphattn import BipartiteGraph
from graphattn.utils.reading import check_arrays, read_bytes, read_lines, read_text

Format = Literal['edges', 'adjlist', 'multiline_adjlist', 'graphml', 'gml', 'gexf',
                 'matrix_market', 'graph6', 'sparse6', 'npz', 'npy']
Direction = Literal['directed', 'undirected']
ENDINGS: dict[str, Format] = {
    '.csv': 'edges', '.tsv': 'edges', '.npz': 'npz', '.npy': 'npy', '.graphml': 'graphml',
    '.gml': 'gml', '.gexf': 'gexf', '.mtx': 'matrix_market', '.g6': 'graph6', '.s6': 'sparse6',
    '.adjlist': 'adjlist'}
_TITLES = {
    'edges': 'list of edges', 'adjlist': 'adjacency list',
    'multiline_adjlist': 'multiline adjacency list', 'graphml': 'GraphML', 'gml': 'GML',
    'gexf': 'GEXF', 'matrix_market': 'Matrix Market', 'npz': 'arrays', 'npy': 'an array'}
# The first bytes of files without a known suffix, of formats and of what is none. No edge list
# begins with any of these.
_BEGINNINGS = {
    r'%%MatrixMarket': 'matrix_market', r'>>graph6<<': 'graph6', r'>>sparse6<<': 'sparse6',
    r'\*(network|vertices)\b': 'Pajek', r'<[\s\S]*<graphml\b': 'graphml',
    r'<[\s\S]*<gexf\b': 'gexf',
    r'((Creator\b|Version\b|comment\b|#)[^\n]*\n\s*)*graph\s*\[': 'gml',
    r'#.*\n# GMT .*\n#.*\n[\s\S]*\}\s*$': 'multiline_adjlist', r'#.*\n# GMT .*\n#': 'adjlist',
    r'(strict\s+)?(di)?graph\b[^\n\[]*\{': 'DOT of Graphviz', r'[\[{]\s*["\[{(]': 'JSON',
    r'dl\s+n\s*=': 'DL of UCINET', r'<(\?xml|!|html\b)': 'XML or HTML',
    r'PK\x03\x04': 'Excel or another archive', r'%\s*(sym|asym|bip)\b': 'KONECT',
    r'(c\b[^\n]*\n\s*)*p\s+(edge|edges|col|sp)\s+\d+\s+\d+\s*$': 'DIMACS'}
_REMEDIES = {
    '.pt': "save the graph of PyG by np.savez('graph.npz', edge_index=data.edge_index, "
           "num_nodes=data.num_nodes)",
    '.mat': "save the array of MATLAB by scipy.sparse.save_npz('graph.npz', array)",
    **dict.fromkeys(('.pkl', '.json', '.metis', '.col', '.net'),
                    'save the graph as GraphML or CSV')}
_SNIFFED = 100  # lines
_MAX_GRAPH = 2**28  # maximum bytes of a file that is read as a whole
_Matrices = tuple[str, list[sp.csr_array]]  # a title, and [query, key] for each segment
# zero-width joiners are invisible, but they shape the adjacent letters
_JOINERS = dict.fromkeys(map(ord, '\u200c\u200d'))


@dataclass(frozen=True)
class GraphFile:
    """The graph that was read from a file, with the names of its tokens."""

    graph: BipartiteGraph  # with a segment for each adjacency array
    names: tuple[str, ...] | None  # of the tokens, if they are not plain numbers
    said: str  # how the file was read, in one line
    matrices: tuple[sp.csr_array, ...] | None  # [query, key] of each segment, if asked for

    def segments(self) -> list[BipartiteGraph] | list[sp.csr_array]:
        return self.graph.unbatch() if self.matrices is None else list(self.matrices)


def read_graph_file(
    path: str | Path,
    *,
    format: Format | None = None,
    header: bool | None = None,
    numbered: bool | None = None,
    edges: Direction | None = None,
    bipartite: bool = False,
    weights: bool = False,
) -> GraphFile:
    """Read the graph in a file, with the names of its tokens.

    The source of an edge is the key, and the target is the query. Edges of weight 0 are dropped.
    Repeated edges count once, and their weights add up.

    Args:
        path: A file, optionally compressed (``.gz``).
        format: The format of the file. If omitted, it is detected by suffix, or otherwise by
            content.
        header: Whether the first line of an edge list names columns. If omitted, the first line is
            a header if its words are common (``source,target``), or if all other lines join
            numbers.
        numbered: Whether ids are indices of tokens, so that a missing id is a token without edges.
            If omitted, ids are names unless they are 0 to n - 1. If false, ids are names, such as
            words or numbers.
        edges: Whether edges are directed from source to target. If omitted, the format decides: an
            edge list is directed, and an adjacency list is undirected.
        bipartite: Whether nodes whose attribute ``bipartite`` is 0 are keys, and nodes with 1 are
            queries. If false, each node is a token, both key and query.
        weights: Whether to read the weights of the edges. An edge without a weight has weight 1.
    """
    path = Path(path)
    try:
        if path.is_fifo() and format is None:
            raise ValueError("the format of a pipe cannot be detected, because a pipe can be read "
                             "only once; pass --format")
        chosen = format or _format_of(path)
        title = _TITLES.get(chosen, chosen)
        if header is not None and chosen != 'edges':
            raise ValueError(f"'header' requires a list of edges (got {title}); omit 'header'")
        if chosen == 'edges':
            read = read_edge_list(path, is_table=_ending(path) in ('.csv', '.tsv'), header=header,
                                  numbered=numbered, is_certain=format == 'edges')
        else:
            read = READERS[chosen](path)
        if isinstance(read, ListedGraph):
            return _of_listed(read, title, numbered, edges, bipartite, weights)
        if (numbered, edges, bipartite) != (None, None, False):
            raise ValueError("'numbered', 'edges' and 'bipartite' must be omitted for an array, "
                             "because an array has no names of nodes")
        return _of_matrices(*read, weights)
    except Exception as error:  # readers of zip files, arrays, XML and GML raise many types
        reason = str(error) or type(error).__name__
        raise ValueError(f"'graph' cannot be read: {path} ({reason})") from error


def read_graph(path: str | Path) -> BipartiteGraph:
    """Read the graph in a file as :func:`read_graph_file` does, without names and weights."""
    return read_graph_file(path).graph


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix == '.gz' else path.name).suffix.lower()


def _format_of(path: Path) -> Format:
    if remedy := _REMEDIES.get(_ending(path)):
        raise ValueError(f'files {_ending(path)} are not supported; {remedy}')
    named = ENDINGS.get(_ending(path), 'edges')
    if named not in ('edges', 'adjlist'):
        return named
    lines = [line for _, line in islice(read_lines(path), _SNIFFED)]
    if named == 'adjlist':  # only in the other kind, lines end with the attributes of an edge
        return 'multiline_adjlist' if any(line.rstrip().endswith('}') for line in lines) else named
    beginning = ''.join(lines).lstrip()
    for pattern, found in _BEGINNINGS.items():
        if re.match(pattern, beginning, re.IGNORECASE | re.MULTILINE):
            if found in READERS:
                return found
            raise ValueError(f"the file looks like {found}, which is not supported; save the graph "
                             f"as GraphML or CSV, or pass --format edges if the file is a list of "
                             f"edges")
    return 'edges'


# From nodes to tokens ################################################################


def _of_listed(listed: ListedGraph, title: str, numbered: bool | None, edges: Direction | None,
               bipartite: bool, keeps_weights: bool) -> GraphFile:
    if edges == 'directed' and not listed.may_be_directed:
        raise ValueError(f"'edges' must not be 'directed' for this file ({title}), which says that "
                         f"its edges are undirected; omit 'edges'")
    is_directed = edges == 'directed' or listed.is_directed and edges is None
    doubt = _doubt(listed) if edges is None and listed.may_be_directed else ''
    if not is_directed and listed.is_listed_at_nodes:
        _, first = np.unique(np.sort(listed.edges), axis=0, return_index=True)
        listed = replace(listed, edges=listed.edges[first], weights=listed.weights[first])
    is_edge = listed.weights != 0
    ends, own = listed.edges[is_edge], listed.weights[is_edge]
    if bipartite:
        ends, num_queries, num_keys = _of_parts(listed, ends, is_directed)
        names, ids = None, 'part 0 are keys and part 1 queries'
    else:
        token, num_queries, names = _as_tokens(listed.nodes, numbered)
        ids = f'ids are names, such as {names[0]!r}' if names else 'ids are numbers of tokens'
        ends, num_keys = token[ends].reshape(-1, 2), num_queries
        if not is_directed:
            is_edge = ends[:, 0] != ends[:, 1]  # a self-loop is its own reverse
            ends = np.concatenate([ends, ends[is_edge, ::-1]])
            own = np.concatenate([own, own[is_edge]])
    key, query = ends.T
    graph = BipartiteGraph.from_edge_index(torch.from_numpy(ends.T.copy()), num_queries, num_keys)
    loops = 0 if is_directed or bipartite else int((graph.key == graph.query).sum())
    num_edges = graph.num_edges if is_directed or bipartite else (graph.num_edges + loops) // 2
    num_zero = int((listed.weights == 0).sum())
    num_repeated = len(listed.weights) - num_zero - num_edges
    left_out = [*listed.left_out, *([f'{num_zero:,} of weight 0'] if num_zero else []),
                *([f'{num_repeated:,} repeated{" (weights added)" * keeps_weights}']
                  if num_repeated else [])]
    said = [f'{title}{", " * bool(listed.title)}{listed.title}: '
            f'{_sizes(graph, num_edges, bipartite)}',
            f'{"directed" if is_directed else "undirected"}{doubt}, '
            f'{_of_weights(listed.weights, keeps_weights)}, {ids}',
            *([f'left out: {", ".join(left_out)}'] if left_out else []), *listed.hints]
    if listed.parts is not None and not bipartite:
        said.append('nodes of both parts are read as tokens; use --bipartite true to make part 0 '
                    'keys and part 1 queries')
    matrix = sp.csr_array((own, (query, key)), shape=(num_queries, num_keys))
    return GraphFile(graph, names, '; '.join(said), (matrix,) if keeps_weights else None)


def _doubt(listed: ListedGraph) -> str:
    """Return words for edges that look undirected in a directed list, or the other way round."""
    ends = listed.edges[listed.edges[:, 0] != listed.edges[:, 1]]
    there, back = (np.unique(ends @ [len(listed.nodes), 1]),
                   ends[:, ::-1] @ [len(listed.nodes), 1])
    num_both = int(np.isin(there, back).sum())
    if listed.is_directed and len(there) and not num_both:
        return (' (but no edge has its reverse; if edges have no direction, pass --edges '
                'undirected)')
    if not listed.is_directed and 0 < num_both < len(there):
        return (' (but only some edges are listed in both directions; if edges have a direction, '
                'pass --edges directed)')
    return ''


def _of_parts(listed: ListedGraph, ends: np.ndarray,
              is_directed: bool) -> tuple[np.ndarray, int, int]:
    """Return the edges from keys to queries, ``[num_edges, 2]``, and the numbers of queries and
    keys."""
    if listed.parts is None:
        raise ValueError("'bipartite' requires the attribute bipartite, 0 for keys or 1 for "
                         "queries, on all nodes; add this attribute, or omit 'bipartite'")
    part = listed.parts[ends]
    if not is_directed:
        ends = np.where(part[:, :1] > part[:, 1:], ends[:, ::-1], ends)
        part = np.sort(part, axis=1)
    if (part != [0, 1]).any():
        raise ValueError("'bipartite' requires all edges to lead from nodes with bipartite=0 to "
                         "nodes with bipartite=1; reverse the other edges, or omit 'bipartite'")
    place = np.where(listed.parts == 0, np.cumsum(listed.parts == 0),
                     np.cumsum(listed.parts == 1)) - 1
    num_keys, num_queries = np.bincount(listed.parts, minlength=2).tolist()
    return place[ends].reshape(-1, 2), num_queries, num_keys


def _as_tokens(nodes: list[str] | np.ndarray, numbered: bool | None,
               ) -> tuple[np.ndarray, int, tuple[str, ...] | None]:
    """Return the token of each node, the number of tokens, and their names, if they have any."""
    check_num_tokens(len(nodes))
    is_counted = isinstance(nodes, np.ndarray)
    are_ids = is_counted or all(map(is_id, nodes)) and len(set(nodes)) == len(nodes)
    if numbered and not are_ids:
        other = next((name for name in nodes if not is_id(name)), 'one of the ids twice')
        raise ValueError(f"'numbered' requires ids that are integers from 0 (got {other[:20]!r}); "
                         f"pass --numbered false to read ids as names")
    if not are_ids or numbered is False:
        return np.arange(len(nodes)), len(nodes), tuple(map(_printable, map(str, nodes)))
    ids = np.array(list(map(int, nodes)), dtype=np.int64)
    if numbered:
        count = int(ids.max(initial=-1)) + 1
        check_num_tokens(count)
        return ids, count, None
    ordered, token = np.unique(ids, return_inverse=True)
    is_from_0 = bool((ordered == np.arange(len(ids))).all())
    return token, len(ids), None if is_from_0 else tuple(map(str, ordered.tolist()))


def _printable(name: str) -> str:
    text = ' '.join(name.split())
    if not text.translate(_JOINERS).isprintable():
        raise ValueError(f"the name {name[:20]!r} cannot be printed; remove control characters "
                         f"from this name")
    return text if not name.isprintable() else name


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


def _of_weights(values: np.ndarray, keeps_weights: bool) -> str:
    if ((values == 0) | (values == 1)).all():
        return 'no weights'
    return 'weights' if keeps_weights else 'weights (ignored, except for 0)'


# Arrays ##############################################################################


def _of_matrices(title: str, segments: Sequence[sp.csr_array], keeps_weights: bool) -> GraphFile:
    if not segments:
        raise ValueError("the file contains no arrays")
    for matrix in segments:
        check_num_tokens(max(matrix.shape))
        _check_finite(title, matrix.data)
    graph = BipartiteGraph.batch(list(map(BipartiteGraph.from_scipy, segments)))
    several = f'{len(segments):,} {title}s, together'
    weights = np.concatenate([matrix.data for matrix in segments])
    said = (f'{title if len(segments) == 1 else several}: {_sizes(graph, graph.num_edges)}; '
            f'directed, rows are queries and columns keys, {_of_weights(weights, keeps_weights)}')
    return GraphFile(graph, None, said, tuple(segments) if keeps_weights else None)


def _read_npz(path: Path) -> ListedGraph | _Matrices:
    check_arrays(path)
    with np.load(path, allow_pickle=False) as arrays:
        if 'edge_index' in arrays:
            return _of_edge_index(arrays)
        if 'format' not in arrays:
            return _of_arrays({name: arrays[name] for name in arrays.files})
    return 'sparse array of scipy', [sp.csr_array(sp.load_npz(path))]


def _of_edge_index(arrays: dict[str, np.ndarray]) -> ListedGraph:
    edge_index, count = arrays['edge_index'], len(arrays['x']) if 'x' in arrays else 0
    if edge_index.dtype.kind not in 'iu' or edge_index.ndim != 2 or len(edge_index) != 2:
        raise ValueError(f'edge_index must be integers [2, num_edges], as in PyG (got '
                         f'{edge_index.dtype} of shape {edge_index.shape})')
    last = int(edge_index.max(initial=-1))
    count = int(arrays['num_nodes']) if 'num_nodes' in arrays else max(count, last + 1)
    check_num_tokens(count)
    if edge_index.min(initial=0) < 0 or last >= count:
        raise ValueError(f'edge_index must have nodes from 0 to {count - 1} (got '
                         f'{int(edge_index.min())} to {last})')
    name = next((name for name in ('edge_weight', 'edge_attr') if name in arrays and
                 arrays[name].shape in (edge_index.shape[1:], (*edge_index.shape[1:], 1))), '')
    weights = arrays[name].astype(np.float64).flatten() if name else None
    if weights is not None:
        _check_finite(name, weights)
    others = [other for other in arrays if other not in ('edge_index', 'num_nodes', name)]
    return ListedGraph(np.arange(count), edge_index.T.astype(np.int64), True, weights,
                       title=f'edge_index of PyG{", weights " * bool(name)}{name}',
                       left_out=[f'arrays {", ".join(others)}'] if others else [],
                       may_be_directed=True)


def _read_npy(path: Path) -> _Matrices:
    return _of_arrays({path.name: np.load(path, mmap_mode='r', allow_pickle=False)})


def _of_arrays(arrays: dict[str, np.ndarray]) -> _Matrices:
    segments = []
    for name, values in arrays.items():
        if values.dtype.kind not in 'biuf' or values.ndim not in (2, 3):
            raise ValueError(f'{name} must be a numeric array [query, key] or [segment, query, '
                             f'key] (got {values.dtype} of shape {values.shape})')
        rows, columns = values.shape[-2:]
        if (values.ndim == 2 and values.dtype.kind in 'iu' and bool((values > 1).any())
                and (2 in (rows, columns) or columns == 3 != rows)):
            raise ValueError(f'{name} may be a list of edges or an adjacency array (got '
                             f'{values.dtype} of shape {values.shape}); save edges [2, num_edges] '
                             f'as the array edge_index of an .npz file, or weights as float')
        segments += map(sp.csr_array, values if values.ndim == 3 else values[None])
    return 'adjacency array', segments


def _read_matrix_market(path: Path) -> _Matrices:
    # Scipy's reader ends the process at bytes 0, at arrays without rows, and at a blank without a
    # line break at the end.
    content = read_bytes(path, max_bytes=_MAX_GRAPH) + b'\n'
    if b'\0' in content:
        raise ValueError('the file must be a text (got a byte 0); check that it is complete')
    rows, columns, entries, *_ = scipy.io.mminfo(BytesIO(content))
    if min(rows, columns) == 0:
        raise ValueError(f'the file must have rows and columns (got {rows} and {columns})')
    check_declared(max(rows, columns, entries), 'nodes or entries', len(content))
    return 'Matrix Market', [sp.csr_array(scipy.io.mmread(BytesIO(content), spmatrix=False))]


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f'{name} must be finite (got NaN or infinite entries); if the array is '
                         'an additive mask, pass mask == 0')


# Formats of networkx #################################################################


def _read_xml(path: Path) -> ListedGraph:
    import networkx as nx

    content = read_bytes(path, max_bytes=_MAX_GRAPH)
    if len(re.findall(rb'<(?:\w+:)?graph[\s/>]', content)) > 1:
        raise ValueError("the file must contain one graph without grouped nodes (got several "
                         "graphs or grouped nodes); keep one graph and ungroup its nodes")
    is_gexf = re.search(rb'<(\w+:)?gexf\b', content) is not None
    return of_networkx((nx.read_gexf if is_gexf else nx.read_graphml)(BytesIO(content)))


def _read_gml(path: Path) -> ListedGraph:
    import networkx as nx

    text = plain_numbers(read_text(path, max_bytes=_MAX_GRAPH))
    text = re.sub(r'\bgraph\s*\[', r'\g<0> multigraph 1 ', text, count=1)  # edges may repeat
    return of_networkx(nx.parse_gml(text.splitlines(), label='id'))


def _read_graph6(path: Path) -> ListedGraph:
    import networkx as nx
    from networkx.readwrite.graph6 import data_to_n

    lines = read_bytes(path).split()
    if len(lines) != 1:
        raise ValueError(f"the file must contain one graph, on one line (got {len(lines)} graphs); "
                         f"keep only one line")
    digits = re.sub(rb'^(>>\w+<<)?:?', b'', lines[0])
    check_declared(data_to_n([digit - 63 for digit in digits[:8]])[0], 'nodes', len(lines[0]))
    is_sparse = lines[0].startswith((b'>>sparse6<<', b':'))
    return of_networkx((nx.from_sparse6_bytes if is_sparse else nx.from_graph6_bytes)(lines[0]))


READERS: dict[Format, Callable[[Path], ListedGraph | _Matrices]] = {
    'npz': _read_npz, 'npy': _read_npy, 'matrix_market': _read_matrix_market,
    'adjlist': read_adjlist,
    'multiline_adjlist': partial(read_adjlist, is_multiline=True),
    'graphml': _read_xml, 'gexf': _read_xml, 'gml': _read_gml, 'graph6': _read_graph6,
    'sparse6': _read_graph6}
