"""Eigenvectors by iteration, beside those of the dense matrix."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse import csgraph

from graphattn.spectra import smallest_eigenvectors


def weighted(graph: nx.Graph) -> nx.Graph:
    draw = np.random.default_rng(0)
    for _, _, edge in graph.edges(data=True):
        edge['weight'] = 10**draw.uniform(-3, 3)
    return graph


GRAPHS = {
    'path': nx.path_graph(200), 'cycle': nx.cycle_graph(201), 'star': nx.star_graph(200),
    'complete': nx.complete_graph(200), 'bipartite': nx.complete_bipartite_graph(80, 120),
    'hypercube': nx.hypercube_graph(7), 'mesh': nx.grid_2d_graph(15, 15),
    'barbell': nx.barbell_graph(60, 80), 'tree': nx.balanced_tree(3, 4),
    'hubs': nx.barabasi_albert_graph(200, 3, seed=0),
    'expander': nx.random_regular_graph(4, 200, seed=0),
    'weighted': weighted(nx.watts_strogatz_graph(200, 6, 0.2, seed=0)),
    'disconnected': nx.disjoint_union_all([nx.path_graph(2), nx.cycle_graph(150)] * 2),
}


def laplacian_and_null_space(graph: nx.Graph) -> tuple[sp.csr_array, sp.csr_array]:
    adjacency = sp.csr_array(nx.to_scipy_sparse_array(graph, dtype=float))
    root = np.sqrt(adjacency.sum(axis=0))
    laplacian = sp.eye_array(len(root)) - adjacency.multiply(1 / np.outer(root, root))
    _, component = csgraph.connected_components(adjacency, directed=False)
    basis = sp.csr_array((root, (np.arange(len(root)), component)))
    return sp.csr_array(laplacian), basis / np.sqrt((basis**2).sum(axis=0))


@pytest.mark.parametrize('count', [1, 5, 18])
@pytest.mark.parametrize('name', GRAPHS)
def test_no_eigenvector_is_missed(name, count):
    laplacian, null_space = laplacian_and_null_space(GRAPHS[name])
    vectors = smallest_eigenvectors(laplacian, sp.csr_array(null_space), count)
    values = np.einsum('nk,nk->k', vectors, laplacian @ vectors)
    expected = scipy.linalg.eigvalsh(laplacian.toarray())[null_space.shape[1]:][:count]
    np.testing.assert_allclose(values, expected, atol=1e-12)
    residual = np.linalg.norm(laplacian @ vectors - vectors * values, axis=0)
    assert residual.max() <= 1e-8 * expected[-1]
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-12)
    assert abs(null_space.T @ vectors).max() < 1e-12
