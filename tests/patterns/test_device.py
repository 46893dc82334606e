"""Every pattern is built on the device that is asked for, which is waited for a few times."""

import pytest
import torch

from graphattn.patterns import (
    Causal,
    Fixed,
    Full,
    GlobalTokens,
    LogSparse,
    RandomKeys,
    RandomRegular,
    SlidingWindow,
    get,
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


@pytest.mark.parametrize(('device', 'match'), [
    ('meta', r"'device' must be a device with values, .* \(got 'meta'\)"),
    ('gpu', r"'device' must.*torch.device.*device.*\(got 'gpu'"),
    (1.5, r"'device' must.*torch.device.*device.*\(got 1.5"),
])
def test_bad_devices(device, match):
    with pytest.raises(ValueError, match=match):
        Full().build(4, device=device)
