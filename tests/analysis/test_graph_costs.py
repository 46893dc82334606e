"""Cost of reading a graph file: four times the file costs four times as much, in every format and
in every shape that a file can have."""

import gzip
from functools import partial
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from analysis.graph_files import READERS, read_graph_file
from tests.costs import is_linear

SIZE = 500


def graph(n):
    return nx.gnm_random_graph(n, 2 * n, seed=0)


def rows(form):
    return lambda path, n: path.write_text(''.join(form.format(a, b) for a, b in graph(n).edges))


def network(write):
    return lambda path, n: write(nx.relabel_nodes(graph(n), str), path)


FORMATS = {
    'edges': ('a.txt', rows('{} {}\n')), 'adjlist': ('a.adjlist', network(nx.write_adjlist)),
    'multiline_adjlist': ('a.txt', network(nx.write_multiline_adjlist)),
    'graphml': ('a.graphml', network(nx.write_graphml_xml)),
    'gml': ('a.gml', network(nx.write_gml)),
    'gexf': ('a.gexf', network(nx.write_gexf)), 'pajek': ('a.net', network(nx.write_pajek)),
    'sparse6': ('a.s6', network(nx.write_sparse6)),
    'graph6': ('a.g6', lambda path, n: nx.write_graph6(nx.cycle_graph(int(n**0.5) * 4), path)),
    'npy': ('a.npy', lambda path, n: np.save(path, np.eye(int(n**0.5) * 10))),
    'npz': ('a.npz', lambda path, n: sp.save_npz(path, nx.to_scipy_sparse_array(graph(n)))),
    'matrix_market': ('a.mtx', lambda path, n: scipy.io.mmwrite(
        path, nx.to_scipy_sparse_array(graph(n))))}
SHAPES = {
    'names': ('a.csv', rows('n{},n{}\n')), 'weights': ('a.csv', rows('{},{},0.5\n')),
    'quotes': ('a.csv', rows('"n{}","a ""b"" {}"\n')),
    'attributes': ('a.txt', rows("{} {} {{'weight': np.float64(0.5)}}\n")),
    'gaps': ('a.txt', rows('{}7 {}7\n')), 'hashtags': ('a.tsv', rows('#{}\t#{}\n')),
    'old Mac': ('a.csv', rows('{},{}\r')), 'blank lines': ('a.txt', rows('{} {}\n\n\n\n')),
    'comments': ('a.csv', lambda path, n: path.write_text('# a "comment\n' * 8 * n + '0,1\n')),
    'packed': ('a.csv.gz', lambda path, n: path.write_bytes(
        gzip.compress(''.join(f'{a},{b}\n' for a, b in graph(n).edges).encode()))),
    'many columns': ('a.csv', lambda path, n: path.write_text(
        f'source,target{",x" * 8 * n}\n' + f'0,1{",1" * 8 * n}\n' * 2)),
    'a long line': ('a.adjlist', lambda path, n: path.write_text(' '.join(map(str, range(8 * n))))),
    'a long name': ('a.csv', lambda path, n: path.write_text(f'{"n" * 99 * n},b\n' * 2)),
    'not printable': ('a.txt', rows('a\u2028{} b\u200d{}\n'))}
CASES = {**FORMATS, **SHAPES}


def test_every_reader_is_measured():
    assert FORMATS.keys() == {'edges', *READERS}


def read(path: Path) -> None:
    try:
        read_graph_file(path)
    except ValueError as error:
        assert 'field larger than field limit' in str(error)


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_cost_is_linear_in_the_file(tmp_path, name):
    file, write = CASES[name]
    paths = []
    for n in (SIZE, 4 * SIZE):
        (tmp_path / str(n)).mkdir()
        paths.append(tmp_path / str(n) / file)
        write(paths[-1], n)
    assert is_linear(*(partial(read, path) for path in paths), floor=0.01)
