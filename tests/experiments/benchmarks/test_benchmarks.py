"""Every benchmark of small sizes ends soon, and leaves a table."""

import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest
import torch

from experiments.benchmarks import (
    diffusion,
    hugging_face,
    layer,
    length,
    measure,
    meshes,
    transformer_conv,
    windows,
)
from experiments.benchmarks.layer import released_algorithm
from experiments.benchmarks.measure import (
    benchmark,
    default_device,
    elsewhere,
    interleave,
    peak_bytes,
    run_benchmark,
)
from experiments.runs.command import run_or_exit
from experiments.signals import GO_ON, INTERRUPTED
from graphattn.functional import edge_feature_attention
from graphattn.layers import EncoderLayer, GraphAttention
from graphattn.patterns import Full, RandomKeys
from graphattn.sources import BlockModelSource, PatternSource
from tests.forked import forked
from tests.graphs import random_graph

DRAWN = 'atlas', 'layer', 'length'  # the figures of the docs
in_forks = pytest.mark.usefixtures('measured_in_forks')


# Of those that would take seconds with --quick, which the others are run with.
SMALL = {
    'atlas': ['--tokens=[64]', '--points=4', '--rounds=1'],
    'attention': ['--nodes=[64]', '--densities=[0.2]'],
    'decoding': ['--lengths=[16, 32]', '--tokens=3', '--layers=1', '--processes=[2]'],
    'distributed': ['--processes=[2]', '--nodes=128', '--nodes_of_block_model=64', '--rounds=1',
                    "--cases=[window, 'block model, 26 %']"],
    'hugging_face': [f'--tokens={hugging_face.MIN_LENGTH}', '--batch=1', '--layers=1', '--heads=1'],
    'layer': ['--nodes=[128]', '--densities=[0.02]', '--clusters=16'],
}


def run_once(cases, *_, **__):
    """Nobody reads these times, which other tests take in turns."""
    timed = measure.stopwatch()
    return {name: [timed(case)] for name, case in cases.items()}


@pytest.mark.slow
@in_forks
@pytest.mark.parametrize('name', ['atlas', 'attention', 'decoding', 'diffusion', 'distributed',
                                  'gps', 'hugging_face', 'layer', 'length', 'scaling', 'windows'])
def test_quick_run_leaves_a_table(name, tmp_path, monkeypatch):
    monkeypatch.setattr(length, 'CHANNELS', 16)
    monkeypatch.setattr(length, 'HEADS', 2)
    monkeypatch.setattr(measure, 'all_times', run_once)
    main = import_module(f'experiments.benchmarks.{name}').main
    run_benchmark(main, [*SMALL.get(name, ['--quick']), '--out', str(tmp_path)])
    assert len(pd.read_csv(tmp_path / f'{name}.csv')) >= 2
    if name in DRAWN:
        assert (tmp_path / f'{name}.png').stat().st_size > 1000


def test_layers_at_their_initial_density_alone_are_not_drawn(tmp_path, capsys):
    layer.draw([{'n': 256, 'density': 'initial', 'case': 'sampled'}], tmp_path)
    assert "no figure, because it requires a density" in capsys.readouterr().out


def test_the_first_argument_may_name_a_mode(capsys, tmp_path, monkeypatch):
    @benchmark()
    def main(out: Path, size: int = 0) -> None:
        """Say which."""
        print('one', size)

    @benchmark()
    def other(out: Path, size: int = 1) -> None:
        """Say which."""
        print('other', size)

    monkeypatch.setattr(windows, 'main', other)
    run_benchmark(main, ['--out', str(tmp_path)], modes=['windows'])
    run_benchmark(main, ['windows', '--size', '3', '--out', str(tmp_path)], modes=['windows'])
    assert capsys.readouterr().out == 'one 0\nother 3\n'
    with pytest.raises(SystemExit):
        run_benchmark(main, ['--help'], modes=['windows'])
    assert 'Modes, as the first argument: windows.' in capsys.readouterr().out


def test_windows_of_grids_are_the_pairs_that_flex_attention_gets():
    for n, pattern, is_edge in windows.shapes(**windows.QUICK).values():
        query, key = torch.meshgrid(torch.arange(n), torch.arange(n), indexing='ij')
        assert torch.equal(pattern.build(n).to_mask(), is_edge(None, None, query, key))


@pytest.mark.slow
@in_forks
def test_what_is_measured_on_a_gpu_runs(tmp_path):
    gpu = pytest.importorskip('experiments.benchmarks.gpu', exc_type=ImportError)
    run_benchmark(gpu.main, ['--quick', '--device', 'cpu', '--dtype', 'float32', '--out',
                             str(tmp_path)])
    for name in ('attention', 'meshes'):
        assert (pd.read_csv(tmp_path / f'gpu_{name}.csv')['ps per edge'] > 0).all()
    assert all(len(pd.read_csv(tmp_path / f'gpu_{name}.csv')) == 1 for name in
               ('rows', 'tiles', 'layers', 'sampling'))
    assert len(pd.read_csv(tmp_path / 'gpu_sweep.csv')) == 12
    assert (pd.read_csv(tmp_path / 'gpu_profile.csv')['times'] > 0).all()


def test_devices_without_a_clock_are_refused():
    with pytest.raises(ValueError, match="'device' must.*got 'meta'"):
        benchmark()(lambda device: None)('meta')


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')
@pytest.mark.parametrize('make', [
    lambda: diffusion.cases(RandomKeys(2).build(8, seed=0), 2, 2, 4)[1],
    lambda: transformer_conv.Setting(8, 9, 2, 4, 3).data(),
    lambda: [layer.Setting(8, 0.5, 2, 4, 4).layer('full attention')[1]()]],
    ids=['diffusion', 'transformer_conv', 'layer'])
def test_what_is_measured_is_made_on_the_default_device(make):
    simulated = pytest.importorskip('tests.simulated_gpu', exc_type=ImportError)
    with (torch.random.fork_rng(devices=[]), torch.no_grad(), simulated.simulated_gpu(),
          default_device(simulated.CUDA)):
        assert {x.device for x in make()} == {simulated.CUDA}


def where_tensors_are_made() -> str:
    return torch.empty(0).device.type


def test_processes_have_the_default_device_and_what_is_timed_has_none(monkeypatch):
    # A thread begins without a default device too.
    monkeypatch.setattr(measure, 'ProcessPoolExecutor', lambda n, context: ThreadPoolExecutor(n))
    monkeypatch.setattr(measure, 'forkserver', lambda: None)
    monkeypatch.setattr(measure, '_seconds_on_gpu', lambda case: case() or 1.)
    seen = []
    with default_device(torch.device('meta')):
        times = interleave({'a': lambda: seen.append(where_tensors_are_made())}, 3, seconds=0.)
        assert where_tensors_are_made() == elsewhere(where_tensors_are_made) == 'meta'
    assert where_tensors_are_made() == 'cpu' and set(seen) == {'cpu'} and times == {'a': 1.}


@pytest.mark.slow
def test_an_interrupt_ends_what_is_measured_elsewhere():
    def interrupt() -> None:
        while not active_children():
            time.sleep(.01)
        time.sleep(.2)  # while that imports
        os.killpg(0, signal.SIGINT)

    def work() -> None:
        os.setsid()
        Thread(target=interrupt).start()
        run_or_exit(lambda: elsewhere(time.sleep, 60, start='spawn'))

    process, = forked(work)
    assert (process.returncode, process.stderr) == (INTERRUPTED, f'interrupted; {GO_ON}\n')


def test_on_a_gpu_events_tell_the_time_and_the_allocator_the_peak(monkeypatch):
    clock, allocated = iter([3., 5., 5., 8., 8., 9.]), [100, 700]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = next(clock)

        def elapsed_time(self, end):
            return 1e3 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, 'Event', Event)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    monkeypatch.setattr(torch.cuda, 'memory_allocated', lambda: allocated[0])
    monkeypatch.setattr(torch.cuda, 'max_memory_allocated', lambda: allocated[1])
    monkeypatch.setattr(torch.cuda, 'reset_peak_memory_stats', lambda: allocated.append(None))
    with default_device(torch.device('meta')):  # anywhere but on the CPU
        assert interleave({'a': lambda: None}, 3, seconds=0.) == {'a': 2.}
        assert peak_bytes(lambda: None) == 600 and len(allocated) == 3


@in_forks
def test_what_does_not_fit_a_gpu_is_left_out(capsys, monkeypatch):
    freed = []
    monkeypatch.setattr(torch.cuda, 'empty_cache', lambda: freed.append(True))

    def too_large():
        raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')

    times = interleave({'a': lambda: None, 'b': too_large}, 2, seconds=0.)
    assert times['a'] > 0 and math.isnan(times['b']) and freed
    assert capsys.readouterr().out == 'skipped b: CUDA out of memory\n'


def test_released_algorithm_is_attention_along_its_mask(monkeypatch):
    torch.manual_seed(0)
    layer = GraphAttention(8, 2, BlockModelSource(2, 4, 4))
    mask = torch.rand(2, 6, 6) < 0.5
    monkeypatch.setattr(torch, 'bernoulli', lambda prob: mask.float())
    x = torch.randn(6, 8)
    out = released_algorithm(layer, x, torch.tensor([0, 6]))
    query, key, value = (linear(x).unflatten(-1, (2, 4)).transpose(0, 1) for linear in
                         (layer.lin_query, layer.lin_key, layer.lin_value))
    weight = (query @ key.mT / 2).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    expected = layer.lin_out((weight @ value).transpose(0, 1).flatten(1))
    torch.testing.assert_close(out, expected)


@pytest.mark.slow
@pytest.mark.parametrize('case', length.FULL)
def test_full_attention_by_length_is_attention_along_the_full_pattern(case):
    layer = length.encoder_layer(case)
    along_edges = EncoderLayer(length.CHANNELS, length.HEADS, PatternSource(Full()),
                               norm_first=False)
    along_edges.load_state_dict(layer.state_dict())
    x, ptr = torch.randn(9, length.CHANNELS), torch.tensor([0, 9])
    torch.testing.assert_close(layer(x, ptr), along_edges(x, ptr))


def test_what_is_not_installed_is_left_out_and_said(monkeypatch, capsys):
    monkeypatch.setattr(meshes, 'find_spec', lambda name: None)
    assert not meshes.is_installed.__wrapped__()
    assert 'pip install --no-deps anemoi-models' in capsys.readouterr().out


@pytest.mark.slow
def test_anemoi_computes_what_the_definition_does_of_features_in_full_width():
    pytest.importorskip('triton', reason="backend 'triton' needs triton")
    pytest.importorskip('anemoi.models', reason='the peer is not installed')
    from tests.ops.triton.interpreter import interpreted

    graph, heads, channels = random_graph(5, 7, 0.5), 2, 4
    nodes = [torch.randn(size, heads, channels, requires_grad=True) for size in (5, 7, 7)]
    features = [torch.randn(shape, requires_grad=True) for shape in
                ((graph.num_edges, 3), (heads, channels, 3))]
    with interpreted():
        actual = meshes.anemoi_attention(graph)(*nodes, meshes.project(*features))
        actual = [actual, *torch.autograd.grad(actual.sin().sum(), (*nodes, *features))]
    expected = edge_feature_attention(*nodes, graph, *features, backend='reference')
    expected = [expected, *torch.autograd.grad(expected.sin().sum(), (*nodes, *features))]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
