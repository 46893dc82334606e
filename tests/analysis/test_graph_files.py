"""Graphs in files: names, directions, parts and segments, and what commands make of them."""

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


@pytest.mark.slow
def test_tokens_keep_their_names(tmp_path, capsys):
    path = tmp_path / 'a.csv'
    path.write_text('source,target\n' + ''.join(
        f'"{NAMES[key]}","{NAMES[query]}"\n' for key, query in sorted(EDGES)))
    file = read_graph_file(path)
    assert list(file.names) == NAMES and file.graph == GRAPH
    hamiltonian(['--graph', str(path), '--out', str(tmp_path / 'path.json')])
    assert 'a.csv, path: Ann; Bo; Cid, Jr; Dora; Eve & co' in capsys.readouterr().out
    assert json.loads((tmp_path / 'path.json').read_text())['a.csv'][0]['path'] == NAMES
    expander(['--graph', str(path), '--out', str(tmp_path / 'sets.json')])
    result, = json.loads((tmp_path / 'sets.json').read_text())['a.csv']
    assert set(result['sweep_set']) < set(NAMES)


@pytest.mark.slow
def test_segments_of_a_file_are_rows(tmp_path, capsys):
    segments = [GRAPH, GRAPH.transpose(), BipartiteGraph.from_mask(torch.from_numpy(~MASK))]
    np.save(tmp_path / 'a.npy', np.stack([MASK, MASK.T, ~MASK]))
    path = tmp_path / 'a.npz'
    np.savez(path, MASK, np.stack([MASK.T, ~MASK]))
    assert read_graph(path).unbatch() == read_graph(tmp_path / 'a.npy').unbatch() == segments
    spectrum(['--graph', str(path), '--out', str(tmp_path)])
    said, *printed = capsys.readouterr().out.splitlines()
    assert said.startswith(f'{path}: 3 adjacency arrays, together: 15 nodes')
    assert [line.split()[0] for line in printed[:5]] == ['a.npz', '0', '1', '2', 'all']
    assert len(json.loads((tmp_path / 'spectrum.json').read_text())['a.npz']) == 3
    assert len((tmp_path / 'spectrum.csv').read_text().splitlines()) == 4


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
    ('a.mtx', lambda path: scipy.io.mmwrite(path, sp.csr_array(np.eye(3, k=1))), None)])
def test_the_direction_is_asked_where_the_file_does_not_say_it(tmp_path, name, write, edges):
    path = tmp_path / name
    write(path)
    said = read_graph_file(path).said
    other = {'undirected': ' directed (', 'directed': ' undirected ('}
    assert f'pass --edges {edges})' in said and other[edges] in said if edges else (
        '--edges' not in said)
    if edges:
        assert '--edges' not in read_graph_file(path, edges=edges).said


OBSTACLES = {
    'sources and sinks': nx.DiGraph([('Hub', name) for name in ('Ann', 'Bo', 'Cid')]),
    'matching': None,  # names no token
    'removal of tokens': nx.full_join(nx.disjoint_union_all([nx.complete_graph(3)] * 4),
                                      nx.empty_graph(['Hub', 'Relay'])),
    'strong components': nx.DiGraph([
        (0, 1), (1, 0), (0, 2), (2, 3), (3, 2), (0, 4), (4, 5), (5, 4), (1, 4), (3, 6), (5, 6),
        (6, 7), (7, 6)])}


def test_what_would_end_the_process_in_scipy_is_read_or_refused(tmp_path):
    path = tmp_path / 'a.mtx'
    path.write_text('%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 0.5\n3 2 1 ')
    assert read_graph_file(path).graph.num_edges == 4  # without a line break after the blank
    path.write_text('%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 0\0.5\n3 2 1\n')
    with pytest.raises(ValueError, match='must be a text .got a byte 0.'):
        read_graph_file(path)
    path.write_text('%%MatrixMarket matrix array real general\n0 2\n1\n2\n')
    with pytest.raises(ValueError, match='must have rows and columns .got 0 and 2.'):
        read_graph_file(path)


def test_adjacency_lists_have_blanks_or_tabs(tmp_path):
    club, path = nx.karate_club_graph(), tmp_path / 'club.adjlist'
    for write in (nx.write_adjlist, nx.write_multiline_adjlist,
                  partial(nx.write_adjlist, delimiter='\t')):
        write(club, path)
        graph = read_graph(path)
        assert (graph.num_queries, graph.num_edges) == (34, 2 * 78), write
    nx.write_adjlist(ARCS, path)
    assert read_graph_file(path, edges='directed').graph == BipartiteGraph.from_networkx(ARCS)
    named = nx.Graph([('Ann Lee', 'Bob'), ('Bob', 'Cy')])
    nx.write_adjlist(named, path, delimiter='\t')
    assert read_graph_file(path).names == ('Ann Lee', 'Bob', 'Cy')
    for mark in ',;|':
        nx.write_adjlist(club, path, delimiter=mark)
        with pytest.raises(ValueError, match='club.adjlist .*must be divided by blanks or tabs'):
            read_graph(path)


@pytest.mark.slow
@pytest.mark.usefixtures('pictures_of_no_work')
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
    if method == 'removal of tokens':
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


def test_attributes_that_are_not_read_are_named(tmp_path):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, 1, 'age')
    nx.set_edge_attributes(graph, 2., 'length')
    nx.write_graphml(graph, tmp_path / 'a.graphml')
    assert 'left out: attributes age, length' in read_graph_file(tmp_path / 'a.graphml').said


PARTS = nx.complete_bipartite_graph(3, 3)  # whose nodes have the attribute
OF_TOKENS = nx.complete_multipartite_graph(3, 3)


@pytest.mark.parametrize('name, write', [('a.graphml', nx.write_graphml), ('a.gml', nx.write_gml)])
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
