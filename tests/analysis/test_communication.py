"""Communication: rows by brute force, bytes of real processes, and closed forms of the times."""

import numpy as np
import pytest
import torch

from analysis.communication import communication, rows_received
from experiments.benchmarks import distributed
from graphattn.distributed import share
from graphattn.patterns import Full
from tests.graphs import random_graph

RATES = dict(heads=2, channels=8, value_bytes=4, node_size=2, node_bandwidth=1e6, bandwidth=1e5,
             latency=1e-3, edge_flops=1e6, pair_flops=1e7)
TOKEN = 2 * 2 * 8 * 4  # bytes


@pytest.mark.parametrize('bounds', [[0, 5, 9, 12], [0, 1, 2, 12], [0, 12]])
def test_rows_are_the_keys_that_others_own(bounds):
    graph = random_graph(12, 12, 0.3)
    mask, owner = graph.to_mask(), np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    expected = np.zeros((len(bounds) - 1,) * 2, dtype=int)
    for process, (first, last) in enumerate(zip(bounds, bounds[1:])):
        for key in mask[first:last].any(0).nonzero().flatten().tolist():
            expected[process, owner[key]] += owner[key] != process
    assert np.array_equal(rows_received(graph, bounds), expected)


@pytest.mark.slow
def test_bytes_are_those_that_processes_send(measured_in_forks):
    world = 3
    sizes = {'window': 512, 'window, global, random': 512}
    measured = distributed.measure_elsewhere(world, distributed.weigh_case, sizes, 32)
    for case, of_processes in zip(sizes, measured):
        source = distributed.CASES[case](32).source
        graph = source.graph(torch.tensor([0, 512]))
        received = rows_received(graph, share(torch.tensor([0, 512]), None, world))
        # Keys and values of 4 heads of 32 float32, and their gradients.
        expected = 2 * 2 * 4 * 32 * 4 * received.sum() / world / 2**20
        sent = sum(process['sent MiB'] for process in of_processes) / world
        assert sent == pytest.approx(expected)


def test_times_of_two_processes_of_one_node():
    result = communication(Full().build(10), processes=[2], **RATES)
    rows, edges = 5, 50
    along = 3 * 4 * 16 * edges / 1e6
    assert result.halo_ms[0] == pytest.approx(
        1e3 * (2 * (1e-3 + rows * TOKEN / 1e6) + along))
    assert result.all_keys_ms[0] == result.halo_ms[0]
    assert result.ring_ms[0] == pytest.approx(1e3 * max(
        3 * (1e-3 + rows * TOKEN / 1e6), 3 * 4 * 16 * 50 / 1e7))
    assert result.ulysses_ms[0] == pytest.approx(1e3 * (
        4 * (1e-3 + 2.5 * TOKEN / 1e6) + 3 * 4 * 16 * 50 / 1e7))
    assert result.halo_mib[0] == pytest.approx(2 * rows * TOKEN / 2**20)
