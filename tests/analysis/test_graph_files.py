"""Graphs in files: every format, the names and weights that it brings, and what is no graph."""

import gzip
import json
import re
from functools import partial

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from matplotlib.figure import Figure
from torch_geometric.data import Data

from analysis.commands import COMMANDS
from analysis.graph_files import read_graph, read_graph_file
from analysis.graphs import as_graph
from graphattn import BipartiteGraph
from graphattn.patterns import SlidingWindow

expander, hamiltonian, mixing, report, spectrum, universality = (COMMANDS[name] for name in (
    'expander', 'hamiltonian', 'mixing', 'report', 'spectrum', 'universality'))

GRAPH = SlidingWindow(1).build(5) - SlidingWindow(0).build(5)
EDGES = GRAPH.edge_index.as_tensor().T.tolist()
NAMES = ['Ann', 'Bo', 'Cid, Jr', 'Dora', 'Eve & co']
MASK = GRAPH.to_mask().numpy()


def text(content):
    return lambda path: path.write_text(content)


def rows(separator, edges=EDGES, weight=''):
    return ''.join(f'{key}{separator}{query}{weight}\n' for key, query in edges)


def weighted():
    graph = GRAPH.to_networkx()
    nx.set_edge_attributes(graph, {(0, 1): 0.5, (1, 0): -2}, 'weight')
    return graph


FILES = {
    'sparse.npz': lambda path: sp.save_npz(path, GRAPH.to_scipy()),
    'dense.npz': lambda path: np.savez(path, adjacency=MASK),
    'dense.npy': lambda path: np.save(path, MASK),
    'graph.graphml': lambda path: nx.write_graphml(GRAPH.to_networkx(), path),
    'graph.gml': lambda path: nx.write_gml(GRAPH.to_networkx(), path),
    'networkx.txt': lambda path: nx.write_edgelist(GRAPH.to_networkx(), path, data=False),
    'attributes.txt': lambda path: nx.write_edgelist(GRAPH.to_networkx(), path),
    'graph.edges': text('# key query\n' + rows(' ') + '\n0 1 # a comment'),
    'graph.csv': text(rows(',')),
    'header.csv': text('Source,Target\r\n# a comment\r\n' + rows(', ')),
    'graph.tsv': text('from\tto\n' + rows('\t')),
    'packed.csv.gz': lambda path: path.write_bytes(gzip.compress(rows(',').encode())),
}
WEIGHTED = {
    'graph.csv': text('key,query,weight\n' + rows(',', weight=',2.5') + '0,3,0\n'),
    'graph.txt': text(rows(' ', weight=' 1e3')),
    'graph.npy': lambda path: np.save(path, MASK * -0.5),
    'graph.npz': lambda path: sp.save_npz(path, GRAPH.to_scipy() * 2),
    'networkx.txt': lambda path: nx.write_weighted_edgelist(weighted(), path),
    'attributes.txt': lambda path: nx.write_edgelist(weighted(), path),
    'graph.gml': lambda path: nx.write_gml(weighted(), path),
    'graph.graphml': lambda path: nx.write_graphml(weighted(), path),
}


@pytest.mark.parametrize('name', FILES)
def test_every_format(tmp_path, name):
    FILES[name](tmp_path / name)
    assert read_graph(tmp_path / name) == GRAPH
    file = read_graph_file(tmp_path / name)
    assert file.names is None and 'no weights' in file.said


@pytest.mark.parametrize('name', WEIGHTED)
def test_weights_say_where_edges_are(tmp_path, name, capsys):
    WEIGHTED[name](tmp_path / name)
    file = read_graph_file(tmp_path / name)
    assert 'no weights' not in file.said and file.graph == GRAPH
    spectrum(['--graph', str(tmp_path / name), '--out', str(tmp_path / 'result.json')])
    assert 'weights (ignored' in capsys.readouterr().out


def named():
    return nx.relabel_nodes(GRAPH.to_networkx(), dict(enumerate(NAMES)))


@pytest.mark.slow
@pytest.mark.parametrize('name, write', [
    ('a.csv', lambda path: path.write_text('source,target\n' + ''.join(
        f'"{NAMES[key]}","{NAMES[query]}"\n' for key, query in sorted(EDGES)))),
    ('a.graphml', lambda path: nx.write_graphml(named(), path)),
    ('a.gml', lambda path: nx.write_gml(named(), path)),
])
def test_tokens_keep_their_names(tmp_path, name, write, capsys):
    write(tmp_path / name)
    file = read_graph_file(tmp_path / name)
    assert list(file.names) == NAMES and file.graph == GRAPH
    hamiltonian(['--graph', str(tmp_path / name), '--out', str(tmp_path / 'path.json')])
    assert f'{name}, path: Ann; Bo; Cid, Jr; Dora; Eve & co' in capsys.readouterr().out
    assert json.loads((tmp_path / 'path.json').read_text())[name][0]['path'] == NAMES
    expander(['--graph', str(tmp_path / name), '--out', str(tmp_path / 'sets.json')])
    result, = json.loads((tmp_path / 'sets.json').read_text())[name]
    assert set(result['sweep_set']) < set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize('name, write', [
    ('a.npy', lambda path: np.save(path, np.stack([MASK, MASK.T, ~MASK]))),
    ('a.npz', lambda path: np.savez(path, MASK, np.stack([MASK.T, ~MASK])))])
def test_segments_of_a_file_are_rows(tmp_path, name, write, capsys):
    write(tmp_path / name)
    segments = [GRAPH, GRAPH.transpose(), BipartiteGraph.from_mask(torch.from_numpy(~MASK))]
    assert read_graph(tmp_path / name).unbatch() == segments
    spectrum(['--graph', str(tmp_path / name), '--out', str(tmp_path)])
    said, *printed = capsys.readouterr().out.splitlines()
    assert said.startswith(f'{tmp_path / name}: 3 adjacency arrays, together: 15 nodes')
    assert [line.split()[0] for line in printed[:5]] == [name, '0', '1', '2', 'all']
    assert len(json.loads((tmp_path / 'spectrum.json').read_text())[name]) == 3
    assert len((tmp_path / 'spectrum.csv').read_text().splitlines()) == 4


@pytest.mark.parametrize('name, content, message', [
    ('a.npz', b'PK nothing', 'not a zip file'), ('a.npy', b'\x93NUMPY', 'a.npy'),
    ('a.graphml', b'<xml', 'line 1'), ('a.gml', b'graph [\n node [ id ! ] ]', '(2, 12)'),
    ('a.gml', b'graph [' * 2000, 'recursion'), ('a.txt', b'0 1\n1 x\n', 'line 2'),
    ('a.txt', b'', 'no edges'), ('a.txt', b'\xff\xfe', 'UTF-8'), ('a.txt', b'-1 2', 'line 1'),
    ('a.csv', b'0,1\n\n0,1,2,3\n', 'line 3'), ('a.csv', b'0,1,nan\n', 'line 1'),
    ('a.csv', b'Ann,Bo,heavy\n', 'line 1'), ('a.csv', b'Ann,\n', 'ends with commas'),
    ('a.csv', b'"Ann,Bo\n', 'unexpected end'), ('a.csv', b'source,target\n', 'no edges'),
    ('a.csv', b'Ann,\x1b[2J\n', 'cannot be printed'), ('a.csv.gz', b'0,1', 'gzip'),
])
def test_what_holds_no_graph(tmp_path, error_line, name, content, message):
    (tmp_path / name).write_bytes(content)
    line = error_line(spectrum, ['--graph', str(tmp_path / name)])
    assert "'graph' cannot be read" in line and name in line and message in line


# Direction and names #################################################################

CAVE = nx.relabel_nodes(nx.star_graph(4), dict(enumerate(['Hub', 'Ann', 'Bo', 'Cid', 'Dora'])))
ARCS = nx.DiGraph([(0, 1), (1, 0), (1, 2)])
PAIRS = np.array([[0, 1, 1], [1, 0, 2]])


@pytest.mark.parametrize('name, write, edges', [
    ('a.txt', lambda path: nx.write_edgelist(CAVE, path, data=False), 'undirected'),
    ('a.csv', text('a,b\na,c\na,a\nb,d\n'), 'undirected'),
    ('a.npz', lambda path: np.savez(path, edge_index=PAIRS[:, :2]), None),
    ('a.npz', lambda path: np.savez(path, edge_index=PAIRS[:, ::2]), 'undirected'),
    ('a.adjlist', lambda path: nx.write_adjlist(ARCS, path), 'directed'),
    ('a.txt', lambda path: nx.write_multiline_adjlist(ARCS, path), 'directed'),
    ('a.txt', lambda path: nx.write_edgelist(ARCS, path, data=False), None),
    ('a.adjlist', lambda path: nx.write_adjlist(CAVE, path), None),
    ('a.graphml', lambda path: nx.write_graphml(CAVE, path), None),
    ('a.gml', lambda path: nx.write_gml(CAVE, path), None),
    ('a.g6', lambda path: nx.write_graph6(nx.star_graph(4), path), None),
    ('a.mtx', lambda path: scipy.io.mmwrite(path, sp.csr_array(np.eye(3, k=1))), None),
    ('a.net', lambda path: nx.write_pajek(CAVE, path), None)])
def test_the_direction_is_asked_where_the_file_does_not_say_it(tmp_path, name, write, edges,
                                                               capsys):
    path = tmp_path / name
    write(path)
    said = read_graph_file(path).said
    other = {'undirected': ' directed (', 'directed': ' undirected ('}
    assert f'pass --edges {edges})' in said and other[edges] in said if edges else (
        '--edges' not in said)
    spectrum(['--graph', str(path), '--out', str(tmp_path / 'a.json')])
    assert capsys.readouterr().out.startswith(f'{path}: {said}')
    if edges:
        assert '--edges' not in read_graph_file(path, edges=edges).said


def test_arcs_of_an_adjacency_list_keep_their_direction(tmp_path):
    nx.write_adjlist(ARCS, tmp_path / 'a.adjlist')
    assert read_graph_file(tmp_path / 'a.adjlist', edges='directed').graph == (
        BipartiteGraph.from_networkx(ARCS))
    assert read_graph(tmp_path / 'a.adjlist') == BipartiteGraph.from_networkx(nx.path_graph(3))


OBSTACLES = {
    'sources and sinks': nx.DiGraph([('Hub', name) for name in ('Ann', 'Bo', 'Cid')]),
    'matching': None,  # names no token
    'removal of tokens': nx.full_join(nx.disjoint_union_all([nx.complete_graph(3)] * 4),
                                      nx.empty_graph(['Hub', 'Relay'])),
    'strong components': nx.DiGraph([
        (0, 1), (1, 0), (0, 2), (2, 3), (3, 2), (0, 4), (4, 5), (5, 4), (1, 4), (3, 6), (5, 6),
        (6, 7), (7, 6)])}


def test_adjacency_lists_have_any_separator_of_networkx(tmp_path):
    club, path = nx.karate_club_graph(), tmp_path / 'club.adjlist'
    for write in (nx.write_adjlist, nx.write_multiline_adjlist,
                  *(partial(nx.write_adjlist, delimiter=separator) for separator in '\t,;|')):
        write(club, path)
        graph = read_graph(path)
        assert (graph.num_queries, graph.num_edges) == (34, 2 * 78), write
    named = nx.Graph([('Ann Lee', 'Bob'), ('Bob', 'Cy')])
    nx.write_adjlist(named, path, delimiter='\t')
    assert read_graph_file(path).names == ('Ann Lee', 'Bob', 'Cy')
    nx.write_adjlist(named, path, delimiter=',')
    with pytest.raises(ValueError, match="club.adjlist .blanks and ',' may both divide the nodes"):
        read_graph(path)


@pytest.mark.slow
@pytest.mark.parametrize('method', OBSTACLES)
def test_texts_tables_files_and_figures_have_the_names(tmp_path, method, capsys):
    graph = nx.DiGraph(CAVE if OBSTACLES[method] is None else OBSTACLES[method])
    graph = nx.relabel_nodes(graph, {node: f'<{node}>' for node in graph})
    path = tmp_path / 'a.txt'
    nx.write_edgelist(graph, path, data=False)
    numbers = re.compile(r'(?:without|token|tokens|\()\s*\d+\s*(?:,| and|\)|the)')
    for question, name in ((hamiltonian, 'hamiltonian'), (universality, 'universality')):
        question(['--graph', str(path), '--out', str(tmp_path)])
        printed = capsys.readouterr().out
        assert not numbers.search(printed)
        assert (printed.count('<') > 1) == (method != 'matching')  # one is in the first line
        saved = (tmp_path / f'{name}.json').read_text()
        assert not numbers.search(saved) and ('<' in saved) == (method != 'matching')
        assert name == 'universality' or method in saved
    report(['--graph', str(path), '--out', str(tmp_path / 'a.html')])
    assert not numbers.search((tmp_path / 'a.html').read_text().partition('data:image')[0])


@pytest.mark.slow
def test_figures_and_values_of_tokens_have_the_names(tmp_path, monkeypatch):
    nx.write_graphml(nx.relabel_nodes(nx.complete_graph(4).to_directed(), dict(enumerate(NAMES))),
                     tmp_path / 'a.graphml')
    drawn = []
    monkeypatch.setattr(Figure, 'savefig', lambda figure, *_, **__: drawn.append(figure))
    hamiltonian(['--graph', str(tmp_path / 'a.graphml'), '--out', str(tmp_path / 'a.png')])
    axis = drawn[0].axes[0].yaxis
    assert [axis.get_major_formatter()(place, 0) for place in (0, 1, 0.5, 4)] == [
        'Ann', 'Bo', '', '']
    mixing(['--graph', str(tmp_path / 'a.graphml'), '--out', str(tmp_path / 'a.json')])
    result, = json.loads((tmp_path / 'a.json').read_text())['a.graphml']
    assert result['names'] == NAMES[:4] and len(result['stationary']) == 4


# Arrays of PyG #######################################################################

def test_edge_index_is_pyg_s(tmp_path):
    path = tmp_path / 'a.npz'
    np.savez(path, edge_index=PAIRS, num_nodes=4, edge_attr=[[2.], [0.], [1.]], x=np.ones((4, 2)))
    file = read_graph_file(path, weights=True)
    data = Data(edge_index=torch.from_numpy(PAIRS[:, [0, 2]]), num_nodes=4)
    assert file.graph == BipartiteGraph.from_edge_index(data.edge_index, 4)
    assert file.matrices[0].toarray()[1, 0] == 2 and 'left out: arrays x' in file.said
    assert read_graph_file(path, edges='undirected').graph.num_edges == 4
    np.savez(path, edge_index=PAIRS)
    assert read_graph(path).num_queries == 3


@pytest.mark.parametrize('name, write, message', [
    ('a.npz', lambda path: np.savez(path, edge_index=PAIRS.T), 'edge_index must be integers'),
    ('a.npz', lambda path: np.savez(path, edge_index=PAIRS * 1.), 'edge_index must be integers'),
    ('a.npz', lambda path: np.savez(path, edge_index=PAIRS, num_nodes=2), 'nodes from 0 to 1'),
    ('a.npz', lambda path: np.savez(path, edge_index=-PAIRS), 'nodes from 0 to'),
    ('a.npz', lambda path: np.savez(path, edges=PAIRS), 'edges may be a list of edges'),
    ('a.npy', lambda path: np.save(path, PAIRS), 'a.npy may be a list of edges'),
    ('a.npy', lambda path: np.save(path, PAIRS.T), 'a.npy may be a list of edges'),
    ('a.npy', lambda path: np.save(path, [[0, 1, 7], [1, 2, 7]]), 'may be a list of edges'),
    ('a.pt', lambda path: torch.save(Data(edge_index=torch.from_numpy(PAIRS)), path), 'np.savez'),
    ('a.mat', lambda path: scipy.io.savemat(path, {'a': PAIRS}), 'save_npz'),
    ('a.json', text('{"nodes": []}'), 'GraphML')])
def test_edges_that_no_adjacency_array_has_are_refused(tmp_path, name, write, message, error_line):
    write(tmp_path / name)
    assert message in error_line(spectrum, ['--graph', str(tmp_path / name)])


def test_attributes_that_are_not_read_are_named(tmp_path):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, 1, 'age')
    nx.set_edge_attributes(graph, 2., 'length')
    nx.write_graphml(graph, tmp_path / 'a.graphml')
    assert 'left out: attributes age, length' in read_graph_file(tmp_path / 'a.graphml').said


PARTS = nx.complete_bipartite_graph(3, 3)  # whose nodes have the attribute
OF_TOKENS = nx.complete_multipartite_graph(3, 3)


@pytest.mark.parametrize('name, write', [
    ('a.graphml', nx.write_graphml), ('a.gml', nx.write_gml), ('a.gexf', nx.write_gexf)])
def test_both_readings_of_two_parts_are_told_and_offered(tmp_path, name, write, capsys):
    path = tmp_path / name
    write(nx.relabel_nodes(PARTS, str), path)
    file = read_graph_file(path)
    assert file.graph == BipartiteGraph.from_networkx(OF_TOKENS)
    assert '6 nodes' in file.said and '--bipartite true' in file.said
    parts = read_graph_file(path, bipartite=True)
    assert parts.graph == BipartiteGraph.from_networkx(PARTS) and parts.graph.num_edges == 9
    assert '3 keys and 3 queries' in parts.said and 'part 0 are keys' in parts.said
    for options, values in (([], [0, 1, 1, 1, 1, 2]), (['--bipartite', 'true'], [0, 1, 1])):
        spectrum(['--graph', str(path), *options, '--out', str(tmp_path / 'a.json')])
        result, = json.loads((tmp_path / 'a.json').read_text())[name]
        assert result['values'] == pytest.approx(values, abs=1e-12)


def test_two_parts_in_a_program_are_tokens_and_warned_of():
    with pytest.warns(UserWarning, match=r'is read as a token.*from_networkx'):
        assert as_graph(PARTS) == BipartiteGraph.from_networkx(OF_TOKENS)
    directed = nx.DiGraph([(0, 3)])
    directed.add_nodes_from(range(4), bipartite=0)
    with pytest.warns(UserWarning):
        assert as_graph(directed).num_edges == 1


@pytest.mark.parametrize('edges, parts, message', [
    ([(0, 1)], {}, 'attribute bipartite'), ([(0, 1)], {0: 0, 1: 0}, 'attribute bipartite'),
    ([(0, 2), (0, 1)], {0: 0, 1: 0, 2: 1}, "'bipartite' requires all edges"),
    ([(2, 0)], {0: 0, 2: 1}, "'bipartite' requires all edges")])
def test_keys_and_queries_need_two_parts(tmp_path, edges, parts, message):
    graph = nx.DiGraph(edges)
    nx.set_node_attributes(graph, parts, 'bipartite')
    nx.write_graphml(graph, tmp_path / 'a.graphml')
    with pytest.raises(ValueError, match=message):
        read_graph_file(tmp_path / 'a.graphml', bipartite=True)


@pytest.mark.parametrize('values, message', [
    (np.array([['a']]), 'must be a numeric array'), (np.ones(3), r'shape \(3,\)'),
    (np.array([[np.nan]]), 'infinite'), (np.array([[-np.inf, 0]]), 'additive mask'),
    (np.array([[{}]]), 'Python objects'), (np.zeros((0, 2, 2)), 'no arrays|empty')])
def test_arrays_that_are_no_adjacency(tmp_path, values, message):
    np.save(tmp_path / 'a.npy', values)
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path / 'a.npy')
