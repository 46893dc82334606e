"""Every pattern is built on the device that is asked for, which is waited for a few times."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread

import numpy as np
import pytest
import torch

from graphattn.patterns import (
    Causal,
    Fixed,
    Full,
    GlobalTokens,
    LogSparse,
    Pattern,
    RandomKeys,
    RandomRegular,
    SlidingWindow,
    Strided,
    get,
    prune_at_random,
)
from tests.patterns.test_contract import every_case

pytest.importorskip('triton', reason='the simulated GPU is a part of its tests')

from tests.simulated_gpu import simulated_gpu  # noqa: E402

simulated = pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')
WINDOW = SlidingWindow(1) | GlobalTokens(1)


@pytest.fixture
def gpu():
    with torch.no_grad(), simulated_gpu() as waits:
        yield waits


def numbers(graph) -> list[list[int]]:
    """The rows of a graph on the simulated GPU."""
    assert graph.device.type == 'cuda'
    return [part.on_cpu.tolist() for part in graph.csr]


@simulated
@every_case
def test_a_gpu_has_the_graph_that_a_cpu_has(gpu, case):
    """One that is random too, for the simulated generator draws what a CPU's does."""
    for size, options in (((16,), {}), ((4, 16), {'offset': 5}), ((1,), {'crop': True})):
        expected = case.pattern.build(*size, seed=0, **options)
        graph = case.pattern.build(*size, seed=0, device='cuda', **options)
        assert numbers(graph) == [part.tolist() for part in expected.csr]


@simulated
@pytest.mark.parametrize('operate', ['__or__', '__and__', '__sub__'])
def test_set_operations_stay_there(gpu, operate):
    pattern = getattr(WINDOW, operate)(Strided(3) & Causal())
    assert numbers(pattern.build(9, device='cuda')) == [x.tolist() for x in pattern.build(9).csr]


@simulated
@pytest.mark.parametrize('pattern, most', [
    (Full(), 2), (Causal(), 3), (SlidingWindow(8), 3), (GlobalTokens(3), 2), (Fixed(4), 4),
    (LogSparse(), 4), (SlidingWindow(8) & Causal(), 4), (WINDOW, 3), (WINDOW - SlidingWindow(0), 6),
    (RandomKeys(2), 7), (RandomRegular(2), 20), (get('bigbird', block=8), 12)],
    ids=repr)
def test_gpus_are_synchronised_for_edge_counts_and_range_checks_only(gpu, pattern, most):
    pattern.build(200, seed=0, device='cuda')
    assert gpu.total() <= most, gpu


@pytest.mark.slow
@simulated
def test_a_generator_elsewhere_seeds_one_there(gpu):
    pattern, there = RandomKeys(2), torch.Generator('cuda').manual_seed(0)
    first, second = (numbers(pattern.build(16, seed=there, device='cuda')) for _ in range(2))
    assert first != second
    for device, other in (('cpu', 'cuda'), ('cuda', 'cpu')):
        first, second = (pattern.build(16, seed=torch.Generator(other).manual_seed(0),
                                       device=device) for _ in range(2))
        assert first == second and first.in_degree().unique().tolist() == [2]


@dataclass(frozen=True, repr=False)
class FromNumpy(Pattern):
    """Listed on the CPU, wherever it is wanted."""

    def edges(self, num_queries, num_keys, generator):
        return torch.from_numpy(np.arange(min(num_queries, num_keys)).repeat(2).reshape(-1, 2).T)


@simulated
def test_edges_listed_on_another_device_are_moved(gpu):
    diagonal, window = FromNumpy(), SlidingWindow(1)
    for pattern in (diagonal, diagonal | window, window - diagonal, diagonal & window):
        expected = pattern.build(5)
        assert expected.device.type == 'cpu'
        assert numbers(pattern.build(5, device='cuda')) == [x.tolist() for x in expected.csr]


@simulated
@pytest.mark.parametrize('pattern', [WINDOW, RandomKeys(2)], ids=repr)
def test_the_default_device_is_that_of_this_thread(gpu, pattern):
    built = {}
    with torch.device('cuda'):
        here = pattern.build(6, seed=0)
        other = Thread(target=lambda: built.update(graph=pattern.build(6, seed=0)))
        other.start()
        other.join()
        assert pattern.build(6, seed=0, device='cpu') == built['graph']
    assert numbers(here) == [part.tolist() for part in built['graph'].csr]
    assert built['graph'].device.type == 'cpu'


def test_pruned_masks_are_the_same_whatever_the_default_device():
    expected = prune_at_random(1, 4, 0.5, seed=0)
    with torch.device('meta'):
        assert prune_at_random(1, 4, 0.5, seed=0) == expected


@pytest.mark.parametrize(('device', 'match'), [
    ('meta', r"'device' must be a device with values, .* \(got 'meta'\)"),
    ('gpu', r"'device' must.*torch.device.*device.*\(got 'gpu'"),
    (1.5, r"'device' must.*torch.device.*device.*\(got 1.5"),
])
def test_bad_devices(device, match):
    with pytest.raises(ValueError, match=match):
        Full().build(4, device=device)
