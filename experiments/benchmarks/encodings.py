"""Times and errors of positional encodings of nodes, compared with PyG's transforms and scipy's
solver.

PyG's transform computes eigenvectors in float32. Scipy's solver is called as PyG calls it, but for
the float64 matrix. The residuals are those of the returned encodings, which PyG and this project
round to float32. An eigenvector's error is its residual divided by the gap to the next eigenvalue,
which is 1e-5 on the largest mesh.

    python -m experiments.benchmarks.encodings
    python -m experiments.benchmarks.encodings --quick
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from jsonargparse.typing import PositiveInt
from scipy.sparse.linalg import eigsh
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import get_laplacian, to_scipy_sparse_matrix

from experiments.benchmarks.measure import (
    benchmark,
    interleave,
    log_log,
    machine,
    progress,
    run_benchmark,
)
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.patterns import Neighborhood, RandomRegular
from graphattn.transforms import LaplacianPE, RandomWalkPE

DEGREE = 8
MAX_WALKED = 2_000  # number of nodes; powers of larger matrices are sparse arrays that fill up
MAX_SCIPY = 10_000  # number of nodes; beyond, scipy takes minutes in float64


@benchmark(nodes=(30, 120), rounds=2)
def main(
    nodes: list[PositiveInt] = (30, 120, 2_000, 10_000, 100_000),
    k: PositiveInt = 8,
    walk_length: PositiveInt = 8,
    rounds: PositiveInt = 5,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time transforms that encode nodes. The graphs differ in kind and size, and are measured one
    after the other.

    Args:
        nodes: Approximate numbers of nodes.
        k: Number of eigenvectors.
        walk_length: Number of steps of random walks.
    """
    rows = [row for n, name in progress(product(nodes, GRAPHS), 'encodings')
            for row in measure(name, n, k, walk_length, rounds)]
    report(rows, 'encodings', out)
    shown = [row for row in rows if row['graph'] == 'near neighbours']
    curves = {name: [row for row in shown if row['case'] == name]
              for name in dict.fromkeys(row['case'] for row in shown)}
    log_log({name: ([row['nodes'] for row in curve], [row['seconds'] for row in curve])
             for name, curve in curves.items()}, 'encodings', out, x='nodes', y='seconds',
            title=f'{k} eigenvectors or {walk_length} steps, near neighbours, {machine()}')


def near_neighbours(num_nodes: int) -> Tensor:
    points = torch.rand(num_nodes, 3, generator=torch.Generator().manual_seed(0))
    return in_both_directions(BipartiteGraph.from_nearest(points, DEGREE + 1).without_self_loops())


def mesh(num_nodes: int) -> Tensor:
    """Return the edges of a square mesh, which join grid points at distance 1."""
    side = round(num_nodes**0.5)
    box = Neighborhood(3, (side,)).build(side**2)
    steps = [abs(box.query // side - box.key // side), abs(box.query % side - box.key % side)]
    return box.edge_index.as_tensor()[:, sum(steps) == 1]


def expander(num_nodes: int) -> Tensor:
    return in_both_directions(RandomRegular(DEGREE // 2).build(num_nodes, seed=0))


def in_both_directions(graph: BipartiteGraph) -> Tensor:
    return (graph | graph.transpose()).edge_index.as_tensor()


GRAPHS = {'near neighbours': near_neighbours, 'mesh': mesh, 'expander': expander}


def measure(name: str, num_nodes: int, k: int, walk_length: int, rounds: int) -> list[dict]:
    """Time the transforms on one graph, and return a row for each transform that supports its size.

    Args:
        name: The kind of graph.
        num_nodes: Approximate number of nodes.
        k: Number of eigenvectors.
        walk_length: Number of steps of random walks.
        rounds: Number of measurements.
    """
    edge_index = GRAPHS[name](num_nodes).clone()
    data = Data(edge_index=edge_index, num_nodes=int(edge_index.max()) + 1)
    laplacian = laplacian_of(data)
    found = cases(data, laplacian, k, walk_length)
    times = interleave(found, rounds, seconds=60.)
    return [{'graph': name, 'nodes': data.num_nodes, 'edges': data.num_edges // 2, 'case': case,
             'seconds': seconds, 'PyG / time': times[f'PyG, {case.split(", ")[1]}'] / seconds,
             'residual': residual(laplacian, found[case]()) if 'eigen' in case else None}
            for case, seconds in times.items()]


def cases(data: Data, laplacian: sp.csr_array, k: int, walk_length: int
          ) -> dict[str, Callable[[], Tensor]]:
    """Return the functions to compare by name. Each function computes positional encodings of the
    nodes of ``data``.

    Args:
        data: The graph.
        laplacian: Its normalised Laplacian, for scipy's solver.
        k: Number of eigenvectors.
        walk_length: Number of steps of random walks.
    """
    def encode(transform: Callable[[Data], Data]) -> Tensor:
        return transform(data).pe

    def by_scipy() -> Tensor:
        _, vectors = eigsh(laplacian, min(k + 1, data.num_nodes - 1), which='SA')
        return torch.from_numpy(vectors[:, 1:])

    transforms = {'PyG, eigenvectors': AddLaplacianEigenvectorPE(k, 'pe', is_undirected=True),
                  'graphattn, eigenvectors': LaplacianPE(k, 'pe')}
    if data.num_nodes <= MAX_WALKED:
        transforms |= {'PyG, walks': AddRandomWalkPE(walk_length, 'pe'),
                       'graphattn, walks': RandomWalkPE(walk_length, 'pe')}
    scipy = {'scipy, eigenvectors': by_scipy} if data.num_nodes <= MAX_SCIPY else {}
    return {name: partial(encode, each) for name, each in transforms.items()} | scipy


def laplacian_of(data: Data) -> sp.csr_array:
    edges = get_laplacian(data.edge_index, torch.ones(data.num_edges, dtype=torch.double), 'sym',
                          num_nodes=data.num_nodes)
    return sp.csr_array(to_scipy_sparse_matrix(*edges, data.num_nodes))


def residual(laplacian: sp.csr_array, encoding: Tensor) -> float:
    """Return the largest norm of :math:`L x - (x^T L x) x` over the eigenvectors x in ``encoding``,
    for the Laplacian L."""
    vectors = encoding.double().numpy()
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    image = laplacian @ vectors
    return float(np.linalg.norm(image - vectors * (vectors * image).sum(axis=0), axis=0).max())


if __name__ == '__main__':
    run_benchmark(main)
