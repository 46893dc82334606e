"""Whatever is read is either what it says or refused by name: nothing dies of it."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphattn import BipartiteGraph
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.patterns import Mask, Pattern, load_masks, parse, save_masks
from tests.fuzz.budget import cases

small = st.integers(-3, 6)
several = st.lists(small, max_size=6)


def is_whole_or_refused(read, *names: str, errors=(TypeError, ValueError)) -> None:
    try:
        graph = read()
    except errors as error:
        assert any(f"'{name}" in str(error) for name in names), error
    else:
        graph.validate()
        assert graph.csc[0][-1] == graph.num_edges


@cases(80)
@given(st.sampled_from(['csr', 'csc', 'bsr']), several, several, several)
def test_scipy(kind, indptr, indices, data):
    matrix = sp.csr_array(np.eye(4)).asformat(kind)
    matrix.indptr, matrix.indices = np.array(indptr, np.int32), np.array(indices, np.int32)
    shape = (len(data), 1, 1) if kind == 'bsr' else len(data)
    matrix.data = np.array(data, float).reshape(shape)
    is_whole_or_refused(lambda: BipartiteGraph.from_scipy(matrix), 'matrix')


@pytest.mark.parametrize('kind', ['csr', 'csc'])
@pytest.mark.parametrize('indptr, indices', [
    ([0, 10**6, 2, 3], [0, 1, 2]), ([0, 10**6, 0, 0], [0, 1, 2]), ([0, 10**6, 0, -3], [0, 1, 2]),
    ([0, 1, 2, 3], [0, 10**6, 2]), ([0, 1, 2, 3], [0, -10**6, 2]), ([0, 1, 2, 10**6], [0, 1, 2]),
    ([-10**6, 1, 2, 3], [0, 1, 2]), ([], []),
])
def test_scipy_far_outside(kind, indptr, indices):
    matrix = sp.csr_array(np.eye(3)).asformat(kind)
    matrix.indptr, matrix.indices = np.array(indptr, np.int32), np.array(indices, np.int32)
    with pytest.raises(ValueError, match="^'matrix' must be a valid"):
        BipartiteGraph.from_scipy(matrix)


@cases(100)
@given(several, several, st.none() | small, st.sampled_from([torch.int64, torch.int16]))
def test_csr(indptr, key, num_keys, dtype):
    rows = torch.tensor(indptr, dtype=torch.long), torch.tensor(key, dtype=dtype)
    is_whole_or_refused(lambda: BipartiteGraph.from_csr(*rows, num_keys),
                        'indptr', 'key', 'num_keys')


@cases(100)
@given(st.lists(st.tuples(small, small), max_size=6), small, st.none() | small,
       st.none() | several)
def test_edge_index(edges, num_queries, num_keys, ptr):
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    ptr = None if ptr is None else torch.tensor(ptr, dtype=torch.long)
    is_whole_or_refused(
        lambda: BipartiteGraph.from_edge_index(edge_index, num_queries, num_keys, query_ptr=ptr),
        'edge_index', 'num_queries', 'num_keys', 'query_ptr', 'key_ptr')


@cases(60)
@given(st.lists(st.tuples(small, small), max_size=6), st.booleans(),
       st.dictionaries(small, st.sampled_from([0, 1, 2, None, '0', [1]])))
def test_networkx(edges, is_directed, parts):
    graph = (nx.DiGraph if is_directed else nx.Graph)(edges)
    nx.set_node_attributes(graph, parts, 'bipartite')
    is_whole_or_refused(lambda: BipartiteGraph.from_networkx(graph), 'graph')


@pytest.fixture(scope='module')
def masks(tmp_path_factory):
    path = tmp_path_factory.mktemp('masks') / 'masks.npz'
    save_masks(path, [Mask(FreeLayout(3), '101010101'), Mask(FreeLayout(3), '1' * 9)])
    return path.with_name('changed.npz'), path.read_bytes()


@cases(80)
@given(st.data())
def test_files_of_masks(masks, data):
    path, content = masks
    place = data.draw(st.integers(0, len(content)))
    cut = data.draw(st.integers(0, 8) | st.integers(0, len(content)))
    path.write_bytes(content[:place] + data.draw(st.binary(max_size=8)) + content[place + cut:])
    try:
        assert all(mask.layout == FreeLayout(3) for mask in load_masks(path))
    except ValueError as error:
        assert str(path) in str(error)


WORDS = st.sampled_from(['star', 'SlidingWindow', 'Full', '(', ')', '()', '(1)', '|', '&', '-', ',',
                         '=', 'radius=1', '2', "'a'", '[', ']', '{', '}', '**', '*', '.', ':', ' ',
                         'Cropped', 'Mask', 'FreeLayout', 'open', '__import__', 'lambda', '\n'])


@cases(80)
@given(st.lists(WORDS, max_size=12).map(''.join) | st.text(max_size=12))
def test_expressions(expression):
    try:
        assert isinstance(parse(expression), Pattern)
    except (TypeError, ValueError) as error:
        assert str(error)
