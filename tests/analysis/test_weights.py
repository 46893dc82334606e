"""The contract of measures of weighted graphs, and Laplacians against networkx and numpy."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse import linalg

from analysis.attention import attention, directed_laplacian
from analysis.expander import expander
from analysis.graph_files import read_graph_file
from analysis.graphs import adjacency_of
from analysis.spectrum import spectrum

RNG = np.random.default_rng(0)
# Of attention, these depend on the order of the tokens.
OF_ORDER = 'to_earlier', 'to_later', 'mean_distance'


def numbers(result, without=()):
    """Return the numbers of a result by name."""
    return {name: value for name, value in result.scalars().items()
            if isinstance(value, float | int) and name not in ('max_residual', *without)}


# Functions of a graph whose answer has no unit.
MEASURES = {
    'normalised': lambda graph, **weights: spectrum(graph, **weights).values,
    'mean': lambda graph, **weights: spectrum(graph, symmetrization='mean', **weights).values,
    'intersection': lambda graph, **weights: spectrum(
        graph, symmetrization='intersection', **weights).values,
    'singular values': lambda graph, **weights: spectrum(
        adjacency_of(graph, **weights)[:-1], **weights).values,
    'expander': lambda graph, **weights: list(numbers(expander(graph, **weights), (
        'min_degree', 'mean_degree', 'max_degree', 'adjacency_gap', 'sweep_volume', 'sweep_size',
        'sweep_boundary', 'sweep_expansion', 'edge_expansion')).values()),
    'attention': lambda graph, **weights: list(
        numbers(attention(graph, **weights), OF_ORDER).values()),
    'teleport': lambda graph, **weights: directed_laplacian(
        graph, teleport=0.2, **weights).all().values,
}
measures = pytest.mark.parametrize('measure', MEASURES)


def weighted(n=11, density=0.4, seed=0, loops=True):
    """Return a directed graph with random weights, strongly connected by a cycle."""
    rng = np.random.default_rng(seed)
    mask = (rng.random((n, n)) < density) | np.roll(np.eye(n, dtype=bool), 1, axis=1)
    np.fill_diagonal(mask, loops & mask.diagonal())
    return sp.csr_array(mask * rng.uniform(0.1, 3, (n, n)))


def as_networkx(matrix):
    return nx.from_scipy_sparse_array(sp.csr_array(matrix).T, create_using=nx.DiGraph)


# Every measure #######################################################################


def with_zeros(graph):
    full = sp.coo_array(np.ones(graph.shape))
    return sp.csr_array((np.asarray(graph.toarray()).ravel(), (full.row, full.col)))


def in_halves(graph):
    coo = graph.tocoo()
    return sp.coo_array((np.tile(coo.data / 2, 2), (np.tile(coo.row, 2), np.tile(coo.col, 2))),
                        shape=graph.shape)


FORMS = {
    'zeros': with_zeros, 'repeated edges': in_halves, 'tensor': lambda graph: torch.from_numpy(
        graph.toarray()), 'networkx': as_networkx, 'csc': sp.csc_array, 'matrix': sp.coo_matrix,
    'multigraph': lambda graph: nx.from_scipy_sparse_array(
        sp.csr_array(in_halves(graph).T), create_using=nx.MultiDiGraph, parallel_edges=False)}


@measures
@pytest.mark.parametrize('form', FORMS)
def test_one_graph_in_every_form(measure, form):
    if (measure, form) == ('singular values', 'tensor'):
        return
    graph = weighted()
    np.testing.assert_allclose(MEASURES[measure](FORMS[form](graph), weights=True),
                               MEASURES[measure](graph, weights=True), atol=1e-13)


BAD = {'negative': (-2., r'\(got -2\)'), 'NaN': (np.nan, r'\(got nan\)'),
       'infinite': (np.inf, r'\(got inf\)'), 'too large': (1.7e308, 'divide all weights')}


@measures
@pytest.mark.parametrize('bad', BAD)
def test_weights_that_no_measure_has_are_refused_in_one_line(measure, bad):
    value, message = BAD[bad]
    graph = weighted()
    graph.data[:4] = value
    with pytest.raises(ValueError, match=f"^'graph' must have weights .*{message}") as error:
        MEASURES[measure](graph, weights=True)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('graph, error', [
    (sp.csr_array(np.eye(3) * 1j), TypeError),
    (nx.Graph([(0, 1, {'weight': 'heavy'})]), TypeError),
    (nx.Graph([(0, 1, {'weight': None})]), ValueError)])
def test_weights_are_real_numbers(graph, error):
    with pytest.raises(error, match="^'graph' must have"):
        spectrum(graph, weights=True)


@pytest.mark.parametrize('graph, question', [
    (nx.empty_graph(0), spectrum), (sp.csr_array((0, 0)), expander),
    (torch.zeros(0, 0), attention)])
def test_no_tokens_are_refused(graph, question):
    with pytest.raises(ValueError, match="'graph' must have at least one token"):
        question(graph, weights=True)


@pytest.mark.parametrize('failure', ['no convergence', 'a wrong vector'])
@pytest.mark.parametrize('is_banded', [False, True])
@pytest.mark.parametrize('question', [
    lambda graph: spectrum(graph, weights=True, extremes=2),
    lambda graph: expander(graph, weights=True), lambda graph: attention(graph)])
def test_eigenvectors_that_do_not_converge_are_refused(question, is_banded, failure, monkeypatch):
    def eigsh(matrix, count, **_):
        if failure == 'no convergence':
            raise linalg.ArpackNoConvergence('No convergence', np.empty(0), np.empty((0, 0)))
        return np.ones(count), np.linalg.qr(RNG.random((matrix.shape[0], count)))[0]

    monkeypatch.setattr('analysis.spectrum.linalg.eigsh', eigsh)
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 0)
    if not is_banded:
        monkeypatch.setattr('analysis.spectrum._FACTOR_WORK', 0)
    with pytest.raises(ValueError, match="^'graph' has extreme eigenvalues .*; measure"):
        question(weighted(40))


# Laplacians ##########################################################################

def isolated(graph):
    return nx.disjoint_union(graph, nx.empty_graph(2))


def random_weights(graph, seed=0):
    rng = np.random.default_rng(seed)
    nx.set_edge_attributes(graph, {edge: rng.uniform(0.1, 3) for edge in graph.edges}, 'weight')
    return graph


LOOPED = nx.path_graph(5)
LOOPED.add_edges_from([(0, 0), (3, 3)])
GRAPHS = {
    'random': random_weights(nx.gnp_random_graph(20, 0.4, seed=0)),
    'disconnected': random_weights(nx.disjoint_union(nx.cycle_graph(5), nx.star_graph(4))),
    'isolated': isolated(random_weights(nx.path_graph(4))), 'one node': nx.empty_graph(1),
    'no edges': nx.empty_graph(3), 'loops': random_weights(LOOPED),
    'loop alone': nx.Graph([(0, 0, {'weight': 0.5}), (1, 2, {'weight': 2.})]),
    'equal weights': nx.Graph([(a, b, {'weight': 0.3}) for a, b in nx.complete_graph(6).edges]),
    'far apart': nx.Graph([(0, 1, {'weight': 1e-9}), (1, 2, {'weight': 1.}),
                           (2, 3, {'weight': 1e9}), (3, 0, {'weight': 1.})])}


def reference(graph, kind):
    """Return L from its formula, with rows of zeros for isolated nodes."""
    adjacency = nx.to_numpy_array(graph)
    degree = adjacency.sum(axis=1)
    scale = (np.where(degree > 0, degree, np.inf) ** -0.5 if kind == 'normalized'
             else np.ones(len(degree)))
    return scale[:, None] * (np.diag(degree) - adjacency) * scale


@pytest.mark.parametrize('kind', ['normalized', 'combinatorial'])
@pytest.mark.parametrize('name', GRAPHS)
def test_eigenvalues_are_those_of_the_formula(name, kind):
    graph = GRAPHS[name]
    expected = reference(graph, kind)
    result = spectrum(graph, laplacian=kind, weights=True)
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(result.values, np.linalg.eigvalsh(expected), atol=1e-10 * scale)
    assert result.num_components == nx.number_connected_components(graph)
    assert result.max_residual < 1e-12 * scale


@pytest.mark.slow
@pytest.mark.parametrize('graph, method, kind', [
    (nx.random_regular_graph(6, 300, seed=0), 'Lanczos', 'normalized'),
    (nx.cycle_graph(300), 'shift-invert', 'combinatorial'),
    (nx.disjoint_union(nx.random_regular_graph(6, 150, seed=1), nx.cycle_graph(150)), None,
     'normalized')])
def test_extremes_are_those_of_the_whole_spectrum(graph, method, kind, monkeypatch):
    graph = random_weights(graph)
    expected = spectrum(graph, laplacian=kind, weights=True)
    monkeypatch.setattr('analysis.spectrum._DENSE_NODES', 0)
    if method != 'shift-invert':
        monkeypatch.setattr('analysis.spectrum._FACTOR_WORK', 0)
    result = spectrum(graph, laplacian=kind, weights=True, extremes=3)
    np.testing.assert_allclose(result.values, expected.values[result.index], atol=1e-10)
    assert method in (None, result.method)


def test_singular_values_of_small_weights():
    """Degrees below 1 divide as others do."""
    matrix = np.random.default_rng(0).uniform(0.01, 0.02, (6, 4))
    matrix[2], matrix[:, 1] = 0, 0
    rows, columns = (np.where(total > 0, total, 1) for total in (matrix.sum(1), matrix.sum(0)))
    expected = np.linalg.svd(matrix / np.sqrt(np.outer(rows, columns)), compute_uv=False)
    result = spectrum(sp.csr_array(matrix), weights=True)
    np.testing.assert_allclose(result.values, expected, atol=1e-12)
    assert result.values[0] == pytest.approx(1)


def test_expansion_of_a_weighted_graph():
    bridge = nx.barbell_graph(4, 0)
    bridge.add_edge(3, 4, weight=0.01)
    result = expander(bridge, weights=True)
    assert result.sweep_boundary == pytest.approx(0.01)
    assert sorted(result.sweep_set) in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert result.exact_conductance == pytest.approx(0.01 / 12.01)
    assert result.cheeger_below <= result.exact_conductance <= result.cheeger_above
    apart = nx.disjoint_union(bridge, nx.empty_graph(1))
    assert expander(apart, weights=True).exact_conductance == 0


# Files ###############################################################################

def text(content):
    return lambda path: path.write_text(content)


EDGES = 'source,target,weight\n0,1,0.5\n1,2,2\n2,0,0\n0,1,0.25\n1,1,3\n'
DIRECTED = [[0, 0, 0], [0.75, 3, 0], [0, 2, 0]]  # [query, key]
BOTH = [[0, 0.75, 0], [0.75, 3, 2], [0, 2, 0]]
SIMPLE = [[0, 0.5, 0], [0.5, 0, 2], [0, 2, 0]]
SIMPLE_GRAPH = nx.Graph([(0, 1, {'weight': 0.5}), (1, 2, {'weight': 2})])
FILES = {
    'edges.csv': (text(EDGES), {}, DIRECTED),
    'undirected.csv': (text(EDGES), {'edges': 'undirected'}, BOTH),
    'array.npy': (lambda path: np.save(path, np.array(DIRECTED)), {}, DIRECTED),
    'array.npz': (lambda path: np.savez(path, np.array(DIRECTED)), {}, DIRECTED),
    'sparse.npz': (lambda path: sp.save_npz(path, sp.csr_array(DIRECTED)), {}, DIRECTED),
    'a.graphml': (lambda path: nx.write_graphml(SIMPLE_GRAPH, path), {}, SIMPLE),
    'a.gml': (lambda path: nx.write_gml(SIMPLE_GRAPH, path), {}, SIMPLE),
    'a.gexf': (lambda path: nx.write_gexf(SIMPLE_GRAPH, path), {}, SIMPLE),
    'a.txt': (lambda path: nx.write_edgelist(SIMPLE_GRAPH, path), {'edges': 'undirected'}, SIMPLE),
    'plain.csv': (text('0,1\n1,2\n'), {}, [[0, 0, 0], [1, 0, 0], [0, 1, 0]])}


@pytest.mark.parametrize('name', FILES)
def test_a_file_brings_its_weights(tmp_path, name):
    write, options, expected = FILES[name]
    write(tmp_path / name)
    plain = read_graph_file(tmp_path / name, **options)
    file = read_graph_file(tmp_path / name, weights=True, **options)
    segment, = file.segments()
    np.testing.assert_allclose(adjacency_of(segment, weights=True).toarray(), expected)
    assert file.graph == plain.graph and plain.matrices is None
    np.testing.assert_array_equal(plain.graph.to_scipy().toarray(), np.array(expected) != 0)
    assert ('weights' in file.said) and 'ignored' not in file.said
