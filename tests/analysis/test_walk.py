"""The walk of uniform attention and its eigenvalues, component by component."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from analysis.diffusion import diffusion
from analysis.walk import (
    component_eigenvalues,
    distance_of_sets,
    strong_components,
    uniform_attention,
)
from graphattn import BipartiteGraph


def eigenvalues(graph):
    attention = uniform_attention(graph)
    return component_eigenvalues(attention, strong_components(attention))


@pytest.mark.slow
def test_eigenvalues_far_from_normal():
    """Pairs that also attend to the pair before: solved whole, the second modulus comes out as
    0.93."""
    pair = np.arange(512) // 2
    lag = pair[:, None] - pair
    attention = uniform_attention(sp.csr_array(((lag == 0) | (lag == 1)).astype(float)))
    found = component_eigenvalues(attention, strong_components(attention))
    assert np.allclose(found[:256].real, [1, *[0.5] * 255], atol=1e-12)
    assert np.abs(found[256:]).max() < 1e-12 and np.abs(found.imag).max() < 1e-12
    whole = np.sort(np.abs(np.linalg.eigvals(attention.toarray())))
    assert whole[-2] > 0.9
    dense = component_eigenvalues(attention.toarray(), strong_components(attention))
    assert np.allclose(dense, found)


def shifts(n):
    """Query i has the keys 2i and 2i + 1: its eigenvalues are 1 and 0, the latter in Jordan
    blocks, which rounding opens to discs."""
    edges = [((2 * query + bit) % n, query) for query in range(n) for bit in (0, 1)]
    return BipartiteGraph.from_edge_index(torch.tensor(edges).T, n)


def circles(n):
    return nx.cycle_graph(n, create_using=nx.DiGraph)


@pytest.mark.slow
@pytest.mark.parametrize('graph, exact', [
    *((shifts(n), [1., *[0.] * (n - 1)]) for n in (4, 8, 64, 256, 512)),
    *((circles(n), np.exp(2j * np.pi * np.arange(n) / n)) for n in (3, 50, 301)),
])
def test_eigenvalues_are_known_as_well_as_their_shift_says(graph, exact):
    result = diffusion(graph, hops=2)
    error = distance_of_sets(result.eigenvalue, np.array(exact))
    assert error < 4 * result.eigenvalue_shift + 1e-12
