"""Cost of reading a graph file by our own readers: four times the file costs four times as much, in
every shape that it can have."""

import gzip
from functools import partial
from pathlib import Path

import networkx as nx
import pytest

from analysis.graph_files import read_graph_file
from tests.costs import is_linear

SIZE = 500


def graph(n):
    return nx.gnm_random_graph(n, 2 * n, seed=0)


def rows(form):
    return lambda path, n: path.write_text(''.join(form.format(a, b) for a, b in graph(n).edges))


def network(write):
    return lambda path, n: write(nx.relabel_nodes(graph(n), str), path)


CASES = {
    'edges': ('a.txt', rows('{} {}\n')), 'adjlist': ('a.adjlist', network(nx.write_adjlist)),
    'names': ('a.csv', rows('n{},n{}\n')),
    'quotes': ('a.csv', rows('"n{}","a ""b"" {}"\n')),
    'attributes': ('a.txt', rows("{} {} {{'weight': np.float64(0.5)}}\n")),
    'blank lines': ('a.txt', rows('{} {}\n\n\n\n')),
    'comments': ('a.csv', lambda path, n: path.write_text('# a "comment\n' * 8 * n + '0,1\n')),
    'packed': ('a.csv.gz', lambda path, n: path.write_bytes(
        gzip.compress(''.join(f'{a},{b}\n' for a, b in graph(n).edges).encode()))),
    'many columns': ('a.csv', lambda path, n: path.write_text(
        f'source,target{",x" * 8 * n}\n' + f'0,1{",1" * 8 * n}\n' * 2)),
    'a long line': ('a.adjlist', lambda path, n: path.write_text(' '.join(map(str, range(8 * n))))),
    'a long name': ('a.csv', lambda path, n: path.write_text(f'{"n" * 99 * n},b\n' * 2))}


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
