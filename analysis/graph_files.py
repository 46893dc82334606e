"""Graph files: adjacency arrays, formats of networkx and other programs, and edge lists.

The text :attr:`GraphFile.said` describes how a file was read, so that no format is guessed
silently. If the contents of a file look like another format than its name says, the file is read in
that format, or an error names the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Literal

import networkx as nx
import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from networkx.readwrite.graph6 import data_to_n

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
from graphattn.utils.reading import check_arrays, read_bytes, read_lines, read_start, read_text

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
# The first bytes of files without a known suffix. No edge list begins with any of these.
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
_REMEDIES = {
    '.pt': "save the graph of PyG by np.savez('graph.npz', edge_index=data.edge_index, "
           "num_nodes=data.num_nodes)",
    '.mat': "save the array of MATLAB by scipy.sparse.save_npz('graph.npz', array)",
    '.pkl': 'save the graph as GraphML', '.json': 'save the graph as GraphML or CSV'}
_SNIFFED = 100  # lines
_HEADER = 2**16  # bytes
# The number of nodes in the headers of files; in graph6 and sparse6, the first digits of 6 bits.
_DECLARED: dict[Format, str] = {
    **dict.fromkeys(('graph6', 'sparse6'), r'^(?:>>\w+<<)?:?([?-~]{1,8})'),
    'pajek': r'^\*vertices\s+(\d{1,18})', 'metis': r'^\s*(\d{1,18})\b',
    'dimacs': r'^p\s+\w+\s+(\d{1,18})', 'matrix_market': r'^\s*(\d{1,18})\s+(\d{1,18})'}
_NODES, _NODES_PER_BYTE = 2**20, 64  # limits: a constant, and a multiple of the bytes of the file


@dataclass(frozen=True)
class GraphFile:
    """The graph that was read from a file, with the names of its tokens.

    Attributes:
        graph (BipartiteGraph): The graph, with several segments if the file holds several adjacency
            arrays.
        names (tuple of str, optional): The names of the tokens, if they are not plain numbers.
        has_weights (bool): Whether some edges have a weight other than 1. The graph does not store
            weights; it only lacks the edges of weight 0.
        matrices (tuple of scipy.sparse.csr_array, optional): The weights of each segment, float64
            ``[query, key]``, if they were requested.
        said (str): A description of how the file was read, in one line.
        asked (str): A question to the user, if the direction of the edges is uncertain.
    """

    graph: BipartiteGraph
    names: tuple[str, ...] | None = None
    has_weights: bool = False
    said: str = ''
    matrices: tuple[sp.csr_array, ...] | None = None
    asked: str = ''

    def segments(self) -> list[BipartiteGraph] | list[sp.csr_array]:
        """Return the graph of each segment, or its weights ``[query, key]`` if weights were
        requested."""
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

    In edge lists, a line that begins with ``#`` or ``%`` is a comment. Names separated by commas,
    semicolons or tabs may begin with such a mark. In that case, only a mark followed by a blank or
    by the same mark begins a comment.

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

    Raises:
        ValueError: The file does not exist, contains no graph, or has too many tokens.
    """
    path = Path(path)
    try:
        if path.is_fifo() and format in (None, 'konect'):
            raise ValueError("the format of a pipe cannot be detected, because a pipe can be read "
                             "only once; pass --format")
        chosen = format or _format_of(path)
        if header is not None and chosen != 'edges':
            raise ValueError(f"'header' requires a list of edges (got {_TITLES[chosen]}); omit "
                             f"'header'")
        _check_declared(path, chosen)
        listed = _read_edge_index(path) if chosen == 'npz' else None
        if chosen in _MATRICES and listed is None:
            if (numbered, edges, bipartite) != (None, None, False):
                raise ValueError("'numbered', 'edges' and 'bipartite' must be omitted for an "
                                 "array, because an array has no names of nodes")
            return _MATRICES[chosen](path, weights)
        if chosen == 'edges':
            listed = read_edge_list(
                path, is_table=_ending(path) in ('.csv', '.tsv'), header=header, numbered=numbered,
                is_certain=format == 'edges')
        elif listed is None:
            listed = _LISTS[chosen](path)
        return _graph_file(listed, chosen, numbered, edges, bipartite, weights)
    except Exception as error:  # readers of zip files, arrays, XML and GML raise many types
        reason = str(error) or type(error).__name__
        raise ValueError(f"'graph' cannot be read: {path} ({reason})") from error


def read_graph(path: str | Path) -> BipartiteGraph:
    """Read the graph in a file as :func:`read_graph_file` does, without names and weights."""
    return read_graph_file(path).graph


# Which format ########################################################################


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix == '.gz' else path.name).suffix.lower()


def _format_of(path: Path) -> Format:
    """Return the format of a file by its suffix, or otherwise by its beginning.

    Raises:
        ValueError: The file begins like an unsupported format.
    """
    if remedy := _REMEDIES.get(_ending(path)):
        raise ValueError(f'files {_ending(path)} are not supported; {remedy}')
    named = ENDINGS.get(_ending(path), 'edges')
    if named != 'edges':
        return named
    beginning = ''.join(line for _, line in islice(read_lines(path), _SNIFFED)).lstrip()
    for pattern, found in _BEGINNINGS.items():
        if re.match(pattern, beginning, re.IGNORECASE | re.MULTILINE):
            return found
    for pattern, other in _REFUSED.items():
        if re.match(pattern, beginning, re.IGNORECASE):
            raise ValueError(f"the file looks like {other}, which is not supported; save the graph "
                             f"as GraphML or CSV, or pass --format edges if the file is a list of "
                             f"edges")
    return 'edges'


def _check_declared(path: Path, chosen: Format) -> None:
    """Raise a ValueError if the header of a file declares far more nodes than its bytes can hold.
    Readers would take all memory for them."""
    if chosen not in _DECLARED or not path.is_file():
        return
    beginning = read_start(path, _HEADER).decode('latin-1')
    found = re.search(_DECLARED[chosen], beginning, re.IGNORECASE | re.MULTILINE)
    counts = map(int, found.groups()) if found else [0]
    if found and chosen in ('graph6', 'sparse6'):
        counts = data_to_n([ord(digit) - 63 for digit in found[1]])[:1]
    count, size = max(counts), path.stat().st_size
    if count > _NODES + _NODES_PER_BYTE * size:
        raise ValueError(f'the file declares {count:,} nodes but has only {size:,} bytes; check '
                         f'that the file is complete')


# From nodes to tokens ################################################################


def _graph_file(listed: ListedGraph, chosen: Format, numbered: bool | None,
                edges: Direction | None, bipartite: bool, keeps_weights: bool) -> GraphFile:
    if edges == 'directed' and not listed.is_directed and chosen not in _SAY_NO_DIRECTION:
        raise ValueError(f"'edges' must not be 'directed' for this file ({_TITLES[chosen]}), which "
                         f"says that its edges are undirected; omit 'edges'")
    is_directed = edges == 'directed' or listed.is_directed and edges is None
    asked = _asked(listed) if edges is None and chosen in _SAY_NO_DIRECTION else ''
    if not is_directed and chosen in _LISTED_AT_NODES:
        _, first = np.unique(np.sort(listed.edges), axis=0, return_index=True)
        listed = replace(listed, edges=listed.edges[first], weights=listed.weights[first])
    weights = np.ones(len(listed.edges)) if listed.weights is None else listed.weights
    ends, own = listed.edges[weights != 0], weights[weights != 0]
    if bipartite:
        ends, num_queries, num_keys = _of_parts(listed, ends, is_directed)
        names = None
    else:
        token, num_queries, names = as_tokens(listed.nodes, numbered)
        ends, num_keys = token[ends].reshape(-1, 2), num_queries
        if not is_directed:
            is_edge = ends[:, 0] != ends[:, 1]  # a self-loop is its own reverse
            ends = np.concatenate([ends, ends[is_edge, ::-1]])
            own = np.concatenate([own, own[is_edge]])
    key, query = ends.T
    graph = BipartiteGraph.from_edge_index(torch.from_numpy(ends.T.copy()), num_queries, num_keys)
    has_weights = _are_weights(weights)
    said = _said(listed, chosen, graph, is_directed, has_weights, keeps_weights, names, bipartite)
    matrices = (sp.csr_array((own, (query, key)), shape=(num_queries, num_keys)),)
    return GraphFile(graph, names, has_weights, said, matrices if keeps_weights else None,
                     asked)


def _asked(listed: ListedGraph) -> str:
    """Return a question if edges look directed in an undirected list, or the other way round."""
    ends = listed.edges[listed.edges[:, 0] != listed.edges[:, 1]]
    there, back = (np.unique(ends @ [len(listed.nodes), 1]),
                   ends[:, ::-1] @ [len(listed.nodes), 1])
    num_both = int(np.isin(there, back).sum())
    if listed.is_directed and len(there) and not num_both:
        return ('read as directed, but no edge has its reverse; if edges have no direction, pass '
                '--edges undirected')
    if not listed.is_directed and 0 < num_both < len(there):
        return ('read as undirected, but only some edges are listed in both directions; if edges '
                'have a direction, pass --edges directed')
    return ''


def _of_parts(listed: ListedGraph, ends: np.ndarray,
              is_directed: bool) -> tuple[np.ndarray, int, int]:
    """Return the edges of a bipartite graph from keys to queries, ``[num_edges, 2]``, the number of
    queries and the number of keys.

    The nodes of part 0 are keys, and the nodes of part 1 are queries. ``ends`` has the positions of
    both nodes of each edge in ``listed.nodes``.
    """
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


def _said(listed: ListedGraph, chosen: Format, graph: BipartiteGraph, is_directed: bool,
          has_weights: bool, keeps_weights: bool, names: tuple[str, ...] | None,
          bipartite: bool) -> str:
    """Return a line of text that tells the user how the file was read: its format, sizes, weights
    and names.

    Args:
        listed: What the file contains.
        chosen: The format.
        graph: The graph that was read.
        is_directed: Whether edges have a direction.
        has_weights: Whether some weight is not 1.
        keeps_weights: Whether weights were requested.
        names: The names of the tokens, if any.
        bipartite: Whether the parts became keys and queries.
    """
    weights = np.ones(len(listed.edges)) if listed.weights is None else listed.weights
    num_zero = int((weights == 0).sum())
    num_edges = _count(graph, is_directed or bipartite)
    num_repeated = len(weights) - num_zero - num_edges
    left_out = [*listed.left_out,
                *([f'{num_zero:,} of weight 0'] if num_zero else []),
                *([f'{num_repeated:,} repeated{" (weights added)" * keeps_weights}']
                  if num_repeated else [])]
    hints = [*listed.hints]
    if listed.parts is not None and not bipartite:
        hints.append('nodes of both parts are read as tokens; use --bipartite true to make part '
                     '0 keys and part 1 queries')
    ids = ('part 0 are keys and part 1 queries' if bipartite else 'ids are numbers of tokens'
           if names is None else f'ids are names, such as {names[0]!r}')
    title = _TITLES[chosen] + (f', {listed.title}' if listed.title else '')
    return '; '.join([
        f'{title}: {_sizes(graph, num_edges, bipartite)}',
        f'{"directed" if is_directed else "undirected"}, '
        f'{_of_weights(has_weights, keeps_weights)}, {ids}',
        *([f'left out: {", ".join(left_out)}'] if left_out else []), *hints])


def _count(graph: BipartiteGraph, is_directed: bool) -> int:
    """Return the number of edges of ``graph``. In an undirected graph, an edge and its reverse
    count once."""
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


def _of_weights(has_weights: bool, keeps_weights: bool) -> str:
    if not has_weights:
        return 'no weights'
    return 'weights' if keeps_weights else 'weights (ignored, except for 0)'


# Arrays ##############################################################################


def _read_npz(path: Path, keeps_weights: bool) -> GraphFile:
    check_arrays(path)
    with np.load(path, allow_pickle=False) as arrays:
        if 'format' not in arrays:
            return _of_arrays({name: arrays[name] for name in arrays.files}, keeps_weights)
    return _of_matrix(sp.load_npz(path), path.name, 'sparse array of scipy', keeps_weights)


def _read_edge_index(path: Path) -> ListedGraph | None:
    """Read the arrays of a PyG graph, or return ``None`` if there is no ``edge_index``."""
    check_arrays(path)
    with np.load(path, allow_pickle=False) as arrays:
        if 'edge_index' not in arrays:
            return None
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
                       left_out=[f'arrays {", ".join(others)}'] if others else [])


def _read_matrix_market(path: Path, keeps_weights: bool) -> GraphFile:
    content = read_bytes(path, max_bytes=_MAX_GRAPH)
    rows, columns, entries, *_ = scipy.io.mminfo(BytesIO(content))
    check_num_tokens(max(rows, columns))
    if entries > len(content):  # each entry needs a line, or a number in a dense matrix
        raise ValueError(f"the file declares {entries:,} entries but has only {len(content):,} "
                         f"bytes; check that the file is complete")
    matrix = sp.coo_array(scipy.io.mmread(BytesIO(content), spmatrix=False))
    return _of_matrix(matrix, path.name, _TITLES['matrix_market'], keeps_weights)


def _of_matrix(matrix: sp.sparray | sp.spmatrix, name: str, title: str,
               keeps_weights: bool) -> GraphFile:
    check_num_tokens(max(matrix.shape))
    _check_finite(name, matrix.data)
    graph, has_weights = BipartiteGraph.from_scipy(matrix), _are_weights(matrix.data)
    said = _said_of_matrix(title, graph, has_weights, keeps_weights)
    return GraphFile(graph, None, has_weights, said,
                     (sp.csr_array(matrix),) if keeps_weights else None)


def _read_npy(path: Path, keeps_weights: bool) -> GraphFile:
    return _of_arrays({path.name: np.load(path, mmap_mode='r', allow_pickle=False)},
                      keeps_weights)


def _of_arrays(arrays: dict[str, np.ndarray], keeps_weights: bool) -> GraphFile:
    segments, matrices, has_weights = [], [], False
    for name, values in arrays.items():
        if values.dtype.kind not in 'biuf' or values.ndim not in (2, 3):
            raise ValueError(f'{name} must be a numeric array [query, key] or [segment, query, '
                             f'key] (got {values.dtype} of shape {values.shape})')
        _check_finite(name, values)
        if _may_be_edges(values):
            raise ValueError(f'{name} may be a list of edges or an adjacency array (got '
                             f'{values.dtype} of shape {values.shape}); save edges [2, num_edges] '
                             f'as the array edge_index of an .npz file, or weights as float')
        check_num_tokens(max(values.shape))
        has_weights |= _are_weights(values)
        for segment in values if values.ndim == 3 else values[None]:
            segments.append(BipartiteGraph.from_mask(torch.from_numpy(segment != 0)))
            matrices += [sp.csr_array(segment)] if keeps_weights else []
    if not segments:
        raise ValueError("the file contains no arrays")
    title = ('adjacency array' if len(segments) == 1
             else f'{len(segments):,} adjacency arrays, together')
    graph = BipartiteGraph.batch(segments)
    said = _said_of_matrix(title, graph, has_weights, keeps_weights)
    return GraphFile(graph, None, has_weights, said, tuple(matrices) if keeps_weights else None)


def _may_be_edges(values: np.ndarray) -> bool:
    """Return whether integers may be pairs of nodes, with or without a weight, rather than the
    entries of an adjacency array."""
    rows, columns = values.shape[-2:]
    has_ends = 2 in (rows, columns) or columns == 3 != rows
    return values.ndim == 2 and values.dtype.kind in 'iu' and has_ends and bool((values > 1).any())


def _said_of_matrix(title: str, graph: BipartiteGraph, has_weights: bool,
                    keeps_weights: bool) -> str:
    return (f'{title}: {_sizes(graph, graph.num_edges)}; directed, rows are queries and columns '
            f'keys, {_of_weights(has_weights, keeps_weights)}')


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f'{name} must be finite (got NaN or infinite entries); if the array is '
                         'an additive mask, pass mask == 0')


def _are_weights(values: np.ndarray) -> bool:
    return bool(((values != 0) & (values != 1)).any())


# Formats of networkx #################################################################


def _read_graphml(path: Path) -> nx.Graph:
    content = read_bytes(path, max_bytes=_MAX_GRAPH)
    if len(re.findall(rb'<(?:\w+:)?graph[\s/>]', content)) > 1:
        raise ValueError("the file must contain one graph without grouped nodes (got several "
                         "graphs or grouped nodes); keep one graph and ungroup its nodes")
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
        raise ValueError(f"the file must contain one graph, on one line (got {len(lines)} graphs); "
                         f"keep only one line")
    return parse(lines[0])


def _networkx(read: Callable[[Path], nx.Graph]) -> Callable[[Path], ListedGraph]:
    return lambda path: _of_networkx(read(path))


def _undirected(read: Callable[[Path], nx.DiGraph]) -> Callable[[Path], ListedGraph]:
    return lambda path: replace(_of_networkx(read(path)), is_directed=False)


def _of_networkx(graph: nx.Graph) -> ListedGraph:
    check_num_tokens(len(graph))
    position = {node: place for place, node in enumerate(graph)}
    edges = as_edges([(position[source], position[target]) for source, target in graph.edges()])
    weights = [weight_of(weight) for *_, weight in graph.edges.data('weight', default=1)]
    parts = [str(part) for _, part in graph.nodes(data='bipartite')]
    labels = [str(node if label in (None, '') else label)
              for node, label in graph.nodes(data='label')]
    others = dict.fromkeys(
        name for view in (graph.nodes, graph.edges) for *_, attributes in view(data=True)
        for name in attributes if name not in _READ_ATTRIBUTES)
    return ListedGraph(labels, edges, graph.is_directed(), np.array(weights),
                       np.array(list(map(int, parts))) if set(parts) == {'0', '1'} else None,
                       left_out=[f'attributes {", ".join(others)}'] if others else [])


_READ_ATTRIBUTES = 'weight', 'label', 'bipartite', 'id'
_MAX_GRAPH = 2**28  # maximum bytes of a file that is read as a whole
_LISTED_AT_NODES = 'adjlist', 'multiline_adjlist'  # an edge may be listed at both of its nodes
_SAY_NO_DIRECTION = 'edges', 'npz', *_LISTED_AT_NODES
_MATRICES: dict[str, Callable[[Path, bool], GraphFile]] = {
    'npz': _read_npz, 'npy': _read_npy, 'matrix_market': _read_matrix_market}
_LISTS: dict[str, Callable[[Path], ListedGraph]] = {
    'adjlist': _undirected(read_adjlist),
    'multiline_adjlist': _undirected(read_multiline_adjlist),
    'graphml': _networkx(_read_graphml), 'gml': _networkx(_read_gml),
    'gexf': _networkx(_read_gexf), 'graph6': _networkx(_read_graph6),
    'sparse6': _networkx(_read_sparse6), 'pajek': read_pajek, 'metis': read_metis,
    'dimacs': read_dimacs, 'konect': read_konect}
