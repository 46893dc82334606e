"""Graph files in the forms that people have: each is read rightly, and says how, or is refused by
the name of what it is."""

import gzip
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from analysis.graph_files import read_graph_file

OWL = 'http://o/owl#'
TRIANGLE, TRIANGLE_LINES = '0>1 1>2 2>0', '0 1\n1 2\n2 0\n'
HEADERS = ['Source,Destination', 'id_1,id_2', 'src,dst', 'FromNodeId,ToNodeId', 'Person A,Person B',
           'start,end', 'a,b']
LABELS = {0: 'a\xa0b', 1: 'c\u3000d', 2: 'e\u200df', 3: 'g\nh'}


@dataclass
class Form:
    """A file, the edges that it holds (``a>b`` from source to target, ``a-b`` either way), how many
    nodes have none, words of what is said of it, and options."""

    name: str
    content: str | bytes | Callable
    edges: str
    says: tuple[str, ...] = ()
    isolated: int = 0
    options: dict = field(default_factory=dict)

    def __str__(self):
        return f'{self.name} {self.content if isinstance(self.content, str) else ""}'[:40]


def write(path, content):
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def by(writer, graph, **options):
    """A file that networkx writes."""
    return lambda path: writer(graph, path, **options)


def by_numpy(writer, *arrays, **named):
    return lambda path: writer(path, *arrays, **named)


def packed(content):
    return gzip.compress(content.encode() if isinstance(content, str) else content)


def expected(edges):
    """Pairs of names, in which ``_`` stands for a blank."""
    pairs = set()
    for edge in edges.replace('_', ' ').split('|') if '|' in edges else edges.split():
        source, _, target = edge.partition('-' if '>' not in edge else '>')
        pairs |= {(source, target)} | ({(target, source)} if '>' not in edge else set())
    return pairs


def found(file):
    names = file.names or tuple(map(str, range(file.graph.num_queries)))
    return {(names[key], names[query])
            for key, query in zip(file.graph.key.tolist(), file.graph.query.tolist())}


def isolated(file):
    return int(((file.graph.in_degree() == 0) & (file.graph.out_degree() == 0)).sum())


def graphml(encoding):
    return (f'<?xml version="1.0" encoding="{encoding}"?><graphml xmlns="http://graphml.graphdrawing'
            f'.org/xmlns"><graph edgedefault="directed"><node id="Zo\xeb"/><node id="Ann"/>'
            f'<edge source="Zo\xeb" target="Ann"/></graph></graphml>').encode(encoding)


def labelled():
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 3)])
    nx.set_node_attributes(graph, LABELS, 'label')
    return graph


def in_classes():
    graph = nx.DiGraph([('Ann', 'Bo'), ('Bo', 'Cid')])
    nx.set_node_attributes(graph, {'Ann': 'a', 'Bo': 'b', 'Cid': 'a'}, 'label')
    return graph


def weighted():
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, np.float64(1.5)), (1, 2, np.float64(0.)), (2, 0, 1)])
    return graph


CYCLE = nx.cycle_graph(6)
PAIRS = np.array([[0, 1, 1], [1, 0, 2]])
METIS = '4 4\n2 4\n1 3\n2 4\n3 1\n'
GML = ('graph [ node [ id 0 ] node [ id 1 ] node [ id 2 ] edge [ source 0 target 1 ]\n'
       'edge [ source 1 target 0 ] edge [ source 1 target 2 ] ]\n')
SIX = '0-1 1-2 2-3 3-4 4-5 0-5'

FORMS = [
    # A mark of comments inside names.
    *(Form(f'hash.{ending}', f'{OWL}A{mark}{OWL}B\n{OWL}B{mark}{OWL}C\n',
           f'{OWL}A>{OWL}B {OWL}B>{OWL}C', ('no header', 'names')) for ending, mark in
      (('txt', ' '), ('tsv', '\t'), ('csv', ','))),
    Form('tags.csv', '#love,#peace\n#peace,#war\n', '#love>#peace #peace>#war',
         ('3 names begin with # or %',)),
    Form('quoted.csv', 'source,target\n"#love",a\na,"#b"\n', '#love>a a>#b', ("header 'source",)),
    Form('tags.txt', '#love\t#peace\n# a comment\n#peace\t#war\n', '#love>#peace #peace>#war',
         ('1 comment line',)),
    Form('comments.csv', '# source,target\n0,1\n#0,2\n1,2\n% end\n2,0\n', TRIANGLE,
         ('left out: 3 comment lines',)),
    Form('many.csv', '# a, b\n' * 300 + '0,1\n1,2\n2,0\n', TRIANGLE, ('300 comment lines',)),
    Form('last.txt', '0 1 # begins\n1 2 #ends\n2 0\n', TRIANGLE),
    Form('quote.csv', "# it's a \"quote\n0,1\n1,2\n# \"\n2,0\n", TRIANGLE, ('2 comment lines',)),
    # What divides columns.
    *(Form('pairs.txt', ''.join(f'{form.format(i, (i + 1) % 3)}\n' for i in range(3)), TRIANGLE,
           (f'divided by {says}', 'no header', '3 nodes (0 isolated), 3 edges', 'directed'))
      for form, says in (('{}, {}', 'commas'), ('{} -> {}', 'arrows'),
                         ('{}; {}', 'semicolons'), ('{}\t{}', 'tabs'), ('{}  {} ', 'blanks'),
                         ('{} | {}', 'bars'),
                         ("{} {} {{'a': 'b, c', 'weight': 2}}", 'blanks'))),
    Form('a.txt', "0 1 {'weight': 2.0, 'kind': 'x'}\n1 2 {}\n2 0 {}\n", TRIANGLE,
         ('left out: attributes kind', 'weights')),
    Form('a.csv', "a b,c,{'weight': 2.0, 'kind': 'x, y'}\nc,d,{}\n", 'a_b>c|c>d',
         ('divided by commas', 'left out: attributes kind', 'weights')),
    Form('a.txt', '3 3 3\n1 2 2.5\n2 1 1\n# c\n', '3>3 1>2 2>1', ('weights', '1 comment line')),
    Form('excel.csv', '\ufeffSource;Target;Weight\r\nAnn;Bo, Jr;0,5\r\nBo, Jr;Cid;1,5\r\n',
         'Ann>Bo,_Jr|Bo,_Jr>Cid', ('semicolons', "header 'Source Target Weight'", 'weights')),
    Form('marks.csv', 'source;target\na,;b\nb;(c]\n(c];a,\n', 'a,>b b>(c] (c]>a,', ('semicolons',)),
    Form('quote.txt', 'a" b {}\nb c {}\nc a" {}\n', 'a">b b>c c>a"', ('blanks',)),
    Form('blanks.csv', '0 1\n1 2\n2 0\n', TRIANGLE, ('blanks',)),
    Form('blanks.txt', 'Doe,J Roe,K\nRoe,K Poe,L\n', 'Doe,J>Roe,K Roe,K>Poe,L', ('blanks',)),
    Form('mac.csv', '0,1\r1,2\r2,0\r', TRIANGLE),
    Form('empty.csv', '0,1,\n1,2,3\n2,0,\n', TRIANGLE, ('weights (ignored',)),
    # Headers and columns.
    *(Form('header.csv', f'{header}\n0,1\n1,2\n2,0\n', TRIANGLE,
           (f'header {header.replace(",", " ")!r}', '3 nodes', '3 edges')) for header in HEADERS),
    *(Form('header.csv', f'{header}\nAnn,Bo\nBo,Cid\n', 'Ann>Bo Bo>Cid', ('header', '3 nodes'))
      for header in HEADERS[:4]),
    Form('header.tsv', 'from\tto\r\n# a comment\r\n0\t1\r\n1\t2\r\n2\t0\r\n', TRIANGLE),
    Form('letters.txt', 'u v\nv w\nw u\n', 'u>v v>w w>u', ('no header',)),
    Form('odd.csv', 'person,friend\nAnn,Bo\nBo,Cid\n', 'person>friend Ann>Bo Bo>Cid',
         ('no header', "the first line, 'person friend', shares no node", '--header true')),
    Form('odd.csv', 'person,friend\nAnn,Bo\nBo,Cid\n', 'Ann>Bo Bo>Cid', ('header',),
         options={'header': True}),
    Form('known.csv', 'from,to\nAnn,Bo\n', 'from>to Ann>Bo', ('no header',),
         options={'header': False}),
    Form('gephi.csv', 'Source,Target,Type,Id,Label,Weight\n0,1,Directed,0,,1.0\n'
         '1,2,Directed,1,,0\n2,0,Directed,2,,1.0\n', '0>1 2>0',
         ("columns 'Type', 'Id', 'Label'", '1 of weight 0')),
    Form('pandas.csv', ',source,target\n0,Ann,Bo\n1,Bo,Cid\n', 'Ann>Bo Bo>Cid', ('header',)),
    # Ids.
    Form('from_1.txt', '1 2\n2 3\n3 4\n4 5\n5 6\n6 1\n', '1>2 2>3 3>4 4>5 5>6 6>1',
         ('6 nodes (0 isolated)', "names, such as '1'")),
    Form('snap.txt', '# Directed graph\n# FromNodeId\tToNodeId\n568730123\t12\n12\t7\n',
         '568730123>12 12>7', ('3 nodes (0 isolated)', '2 comment lines')),
    Form('gaps.txt', '0 5\n5 2\n', '0>5 5>2', ('6 nodes (3 isolated)', 'numbers of tokens'), 3,
         {'numbered': True}),
    Form('zeros.txt', '001 1\n1 01\n', '001>1 1>01', ('names',)),
    Form('mixed.txt', '0 1\n1 x\n', '0>1 1>x', ('names',), options={'numbered': False}),
    Form('twice.txt', '0 1\n0 1\n1 0\n', '0>1 1>0', ('2 edges', '1 repeated')),
    Form('undirected.txt', '0 1\n1 0\n1 2\n', '0-1 1-2', ('2 edges', 'undirected', '1 repeated'),
         options={'edges': 'undirected'}),
    # Other formats of text.
    *(Form(name, by(nx.write_adjlist, CYCLE), SIX, ('adjacency list', 'undirected'))
      for name in ('a.txt', 'a.adjlist')),
    Form('a.txt', by(nx.write_multiline_adjlist, CYCLE), SIX, ('multiline', '6 edges')),
    Form('a.adjlist', by(nx.write_multiline_adjlist, nx.Graph([('a', 'b', {'kind': 'x'})])), 'a-b',
         ('left out: 3 comment lines, attributes kind',)),
    Form('a.txt', '0 1 2\n1 2 0\n2 0 1\n', '0-1 1-2 0-2', ('adjacency', '3 edges', 'undirected'),
         options={'format': 'adjlist'}),
    Form('hash.adjlist', 'a#b c#d\n# x\ne\n', 'a#b-c#d', ('1 isolated', '1 comment line'), 1),
    # What no graph has.
    Form('a.mtx', by(lambda m, p: scipy.io.mmwrite(p, m), sp.coo_array(np.eye(3)[[1, 2, 0]])),
         '1>0 2>1 0>2', ('Matrix Market', 'rows are queries')),
    Form('a.mtx.gz', packed('%%MatrixMarket matrix coordinate pattern symmetric\n'
                            '3 3 2\n2 1\n3 2\n'), '0-1 1-2', ('4 edges', 'no weights')),
    Form('a.txt', '%%MatrixMarket matrix array integer general\n2 2\n0\n1\n0\n0\n', '0>1'),
    Form('a.g6', by(nx.write_graph6, CYCLE), SIX, ('graph6', '6 edges')),
    Form('a.s6', by(nx.write_sparse6, CYCLE), SIX, ('sparse6',)),
    Form('a.gexf', by(nx.write_gexf, nx.relabel_nodes(CYCLE, str)), SIX, ('GEXF', 'undirected')),
    # Arrays, whose rows are queries.
    Form('a.npy', by_numpy(np.save, np.eye(3)[[2, 0, 1]]), TRIANGLE, ('no weights',)),
    Form('a.npy', by_numpy(np.save, -0.5 * np.eye(3)[[2, 0, 1]]), TRIANGLE, ('weights (ignored',)),
    Form('a.npz', by_numpy(np.savez, adjacency=np.eye(3)[[2, 0, 1]] > 0), TRIANGLE),
    Form('a.npz', by_numpy(sp.save_npz, sp.csr_array(2 * np.eye(3)[[2, 0, 1]])), TRIANGLE,
         ('weights (ignored',)),
    Form('a.npz', by_numpy(np.savez, edge_index=[[0, 1, 2], [1, 2, 0]], num_nodes=4), TRIANGLE,
         ('1 isolated',), 1),
    # XML and GML.
    *(Form(name, content, 'Zo\xeb>Ann', ('GraphML', 'directed')) for name, content in (
        ('latin.graphml', graphml('ISO-8859-1')), ('wide.graphml', graphml('UTF-16')),
        ('bom.graphml', b'\xef\xbb\xbf' + graphml('utf-8')), ('a.xml', graphml('utf-8')),
        ('a.graphml.gz', packed(graphml('utf-8'))))),
    Form('a.gml.gz', packed(GML), '0-1 1-2', ('GML', '2 edges', '1 repeated')),
    Form('a.gml', GML.replace('graph [', 'Creator "x"\ngraph [ directed 1'), '0>1 1>0 1>2'),
    Form('a.txt', GML, '0-1 1-2', ('GML',)),
    *(Form(f'a.{ending}', by(writer, labelled()), 'a b>c d|c d>e\u200df|e\u200df>g h', ('names',))
      for ending, writer in (('graphml', nx.write_graphml), ('gexf', nx.write_gexf))),
    # Labels that several nodes have are not their names.
    Form('a.graphml', by(nx.write_graphml, in_classes()), 'Ann>Bo Bo>Cid',
         ('left out: attributes label',)),
    Form('blanks.tsv', 'a\xa0b\tc\u3000d\nc\u3000d\te\u200df\n', 'a b>c d|c d>e\u200df'),
    Form('blanks.txt', 'a\xa0b c\u3000d\nc\u3000d e\n', 'a b>c d|c d>e'),
    # Weights as numpy 2 writes them.
    *(Form(name, by(writer, weighted()), '0>1 2>0', ('1 of weight 0', 'weights'))
      for name, writer in (('a.txt', nx.write_edgelist), ('b.txt', nx.write_weighted_edgelist),
                           ('a.gml', nx.write_gml))),
    Form('a.csv', '0,1,np.float64(1.0)\n1,2,np.float64(0.0)\n2,0,np.int64(1)\n', '0>1 2>0'),
]

REFUSED = [
    ('a.txt', METIS, ('METIS',)), ('a.txt', '3 3\n2 3\n1 3\n1 2\n', ('METIS',)),
    ('a.metis', METIS, ('.metis', 'GraphML')),
    ('a.col', 'p edge 4 1\ne 1 2\n', ('.col', 'GraphML')),
    ('a.gr', 'c\np sp 3 2\na 1 2 9\na 3 2 7\n', ('DIMACS',)),
    *((f'out.{kind}', f'% {kind} unweighted\n1 1\n2 1\n', ('KONECT',))
      for kind in ('asym', 'sym', 'bip')),
    *(('a.txt', 3 * f'{line}\n', (name, line)) for line, name in (
        ('(0, 1)', 'brackets'), ('[0, 1],', 'brackets'), ("('0', '1')", 'brackets'),
        ("(0, 1, {'weight': 2})", 'brackets'), ('0 1;', 'semicolons'), ('0 1,', 'commas'))),
    ('a.csv', 'source,target\n"Ann\nB",Cid\n', ('line 2', 'unexpected end')),
    ('a.txt', '0 1 2\n1 2 0\n2 0 1\n', ('two neighbours', '--format adjlist', '--format edges')),
    ('a.txt', '0 1 2 3\n1 2\n3\n', ('line 1', '4 columns', '--format adjlist')),
    ('a.txt', '0 1\n1 2\n3\n', ('line 3', '1 columns', '--format adjlist')),
    *(('a.txt', f'Ann Bob\n{line}\n', ('line 2', line, 'divide the columns by commas or tabs'))
      for line in ('Ann Lee Bob', 'Ann Lee Bob Ray')),
    ('a.txt', '0 1\n1 x\n', ('line 2', '--numbered false')),
    ('a.csv', '0,1\n"Ann",2\n', ('line 2', '--numbered false')),
    ('a.txt', '{"nodes": [], "links": []}', ('JSON',)),
    ('a.txt', 'digraph G {\n a -> b;\n}', ('DOT',)),
    ('a.csv', '<!DOCTYPE html>\n<html>', ('HTML',)), ('a.txt', 'DL n=3\ndata:\n', ('UCINET',)),
    ('a.csv', b'PK\x03\x04\x14', ('Excel',)), ('a.csv', 'a,b\n'.encode('utf-16'), ('UTF-8',)),
    ('a.txt', '1 2\n-1 3\n', ('line 2',)), ('a.txt', '-1 2', ('line 1',)),
    ('a.net', '*Vertices 2\n*Edges\n1 2\n', ('.net', 'GraphML')),
    ('a.txt', '*Vertices 2\n*Edges\n1 2\n', ('Pajek', 'GraphML')),
    ('a.adjlist', '0,1,2\n1,2\n', ('blanks or tabs', 'GraphML')),
    ('a.mtx', '%%MatrixMarket matrix coordinate real general\n3 3 999999999\n', ('999,999,999',)),
    ('a.mtx', '%%MatrixMarket matrix coordinate real general\n99999999 3 1\n1 1 1\n', ('nodes',)),
    ('a.g6', 'Bw\nBw\n', ('2 graphs',)),
    ('a.graphml', graphml('utf-8').replace(b'</graph>', b'</graph><graph/>'), ('several graphs',)),
    ('a.graphml', '<xml', ('line 1',)), ('a.gml', 'graph [\n node [ id ! ] ]', ('(2, 12)',)),
    ('a.gml', 'graph [' * 2000, ('recursion',)), ('a.csv.gz', '0,1', ('gzip',)),
    ('a.txt', '', ('no edges',)), ('a.csv', 'source,target\n', ('no edges',)),
    ('a.csv', '0,1\n\n0,1,2,3\n', ('line 3',)), ('a.csv', '0,1,nan\n', ('line 1',)),
    ('a.csv', 'Ann,Bo,heavy\n', ('line 1',)), ('a.csv', 'Ann,\n', ('ends with commas',)),
    ('a.csv', 'Ann,\x1b[2J\n', ('cannot be printed',)), ('a.json', '{"nodes": []}', ('GraphML',)),
    # Arrays that are no adjacency.
    ('a.npz', b'PK nothing', ('not a zip file',)), ('a.npy', b'\x93NUMPY', ('a.npy',)),
    ('a.npz', by_numpy(np.savez, edge_index=PAIRS.T), ('edge_index must be integers',)),
    ('a.npz', by_numpy(np.savez, edge_index=PAIRS * 1.), ('edge_index must be integers',)),
    ('a.npz', by_numpy(np.savez, edge_index=PAIRS, num_nodes=2), ('nodes from 0 to 1',)),
    ('a.npz', by_numpy(np.savez, edge_index=-PAIRS), ('nodes from 0 to',)),
    ('a.npz', by_numpy(np.savez, edges=PAIRS), ('edges may be a list of edges',)),
    ('a.npy', by_numpy(np.save, PAIRS.T), ('a.npy may be a list of edges',)),
    ('a.npy', by_numpy(np.save, np.array([['a']])), ('must be a numeric array',)),
    ('a.npy', by_numpy(np.save, np.ones(3)), ('shape (3,)',)),
    ('a.npy', by_numpy(np.save, np.array([[np.nan]])), ('infinite',)),
    ('a.npy', by_numpy(np.save, np.array([[-np.inf, 0]])), ('additive mask',)),
    ('a.npy', by_numpy(np.save, np.array([[{}]])), ('Python objects',)),
    ('a.npy', by_numpy(np.save, np.zeros((0, 2, 2))), ()),
    ('a.pt', lambda path: torch.save(Data(edge_index=torch.from_numpy(PAIRS)), path),
     ('np.savez',)),
    ('a.mat', lambda path: scipy.io.savemat(path, {'a': PAIRS}), ('save_npz',)),
]


CONTENTS = {'a.gml': GML, 'a.npy': by(lambda graph, path: np.save(path, graph), np.eye(2)),
            'a.mtx': '%%MatrixMarket matrix coordinate pattern symmetric\n2 2 1\n2 1\n'}


@pytest.mark.parametrize('name, options, words', [
    ('a.mtx', {'numbered': True}, 'must be omitted for an array'),
    ('a.npy', {'edges': 'undirected'}, 'must be omitted for an array'),
    ('a.npz', {'header': True}, "'header' requires a list of edges (got arrays)"),
    ('a.gml', {'header': False}, "'header' requires a list of edges (got GML)"),
    ('a.gml', {'edges': 'directed'}, "'edges' must not be 'directed' for this file (GML)"),
    ('a.csv', {'bipartite': True}, "'bipartite' requires"),
    ('a.csv', {'numbered': True}, "'numbered' requires ids that are integers")])
def test_options_that_a_file_cannot_take_are_refused(tmp_path, name, options, words):
    write(tmp_path / name, CONTENTS.get(name, 'Ann,Bo\n'))
    with pytest.raises(ValueError, match='cannot be read') as refused:
        read_graph_file(tmp_path / name, **options)
    assert words in str(refused.value)


def test_a_pipe_is_read_once_or_not_at_all(tmp_path):
    def read(**options):
        writer = threading.Thread(target=path.write_text, args=(TRIANGLE_LINES,))
        writer.start()
        try:
            return read_graph_file(path, **options)
        finally:
            path.read_text() if not options else None  # so that the writer ends
            writer.join()

    path = tmp_path / 'pipe'
    os.mkfifo(path)
    assert found(read(format='edges')) == expected(TRIANGLE)
    with pytest.raises(ValueError, match='--format'):
        read()


@pytest.mark.parametrize('form', FORMS, ids=str)
def test_what_people_have_is_read(tmp_path, form):
    path = tmp_path / form.name
    write(path, form.content)
    file = read_graph_file(path, **form.options)
    assert found(file) == {pair for pair in expected(form.edges) if any(pair)}
    assert isolated(file) == form.isolated
    assert '\n' not in file.said
    for words in form.says:
        assert words in file.said


@pytest.mark.parametrize('name, content, words', REFUSED)
def test_what_is_none_is_refused_by_name(tmp_path, name, content, words):
    write(tmp_path / name, content)
    with pytest.raises(ValueError) as refused:
        read_graph_file(tmp_path / name)
    message = str(refused.value)
    assert "'graph' cannot be read" in message and name in message and '\n' not in message
    for word in words:
        assert word in message
