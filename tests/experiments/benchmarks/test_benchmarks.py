"""Every benchmark ends soon with --quick, and leaves a table and a figure."""

from importlib import import_module

import pandas as pd
import pytest
import torch

from experiments.benchmarks import length
from experiments.benchmarks.layer import released_algorithm
from experiments.benchmarks.measure import elsewhere, interleave, run_benchmark, saved_bytes
from graphattn.layers import EncoderLayer, GraphAttention
from graphattn.patterns import Full
from graphattn.sources import BlockModelSource, PatternSource

pytestmark = pytest.mark.usefixtures('started_by_a_server')


@pytest.mark.slow
@pytest.mark.parametrize('name', ['attention', 'crossover', 'decoding', 'diffusion',
                                  'distributed', 'hugging_face', 'layer', 'length',
                                  'long_encoder', 'ordering', 'sampler', 'scaling', 'tiles'])
def test_quick_run_leaves_table_and_figure(name, tmp_path, monkeypatch):
    monkeypatch.setattr(length, 'CHANNELS', 96)
    main = import_module(f'experiments.benchmarks.{name}').main
    run_benchmark(main, ['--quick', '--out', str(tmp_path)])
    assert len(pd.read_csv(tmp_path / f'{name}.csv')) >= 2
    assert (tmp_path / f'{name}.png').stat().st_size > 1000


@pytest.mark.slow
def test_what_is_measured_on_a_gpu_runs(tmp_path):
    gpu = pytest.importorskip('experiments.benchmarks.gpu', exc_type=ImportError)
    run_benchmark(gpu.main, ['--quick', '--device', 'cpu', '--dtype', 'float32', '--out',
                             str(tmp_path)])
    assert (pd.read_csv(tmp_path / 'gpu_attention.csv')['ps per edge'] > 0).all()
    assert all(len(pd.read_csv(tmp_path / f'gpu_{name}.csv')) == 1 for name in
               ('layers', 'sampling'))


def test_cases_take_turns():
    order = []
    times = interleave({'a': lambda: order.append('a'), 'b': lambda: order.append('b')}, rounds=3)
    rounds = [''.join(order[first:first + 2]) for first in range(0, len(order), 2)]
    assert len(rounds) >= 4 and set(rounds) == {'ab', 'ba'} and set(times) == {'a', 'b'}


def test_saved_bytes_counts_each_storage_once():
    x = torch.ones(1000, requires_grad=True)
    assert saved_bytes(lambda: x * x) == 4000
    assert saved_bytes(lambda: (x * x) * torch.ones(1000)) == 4000 + 4000


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


@pytest.mark.parametrize('case', length.FULL)
def test_full_attention_by_length_is_attention_along_the_full_pattern(case):
    layer = length.encoder_layer(case)
    along_edges = EncoderLayer(length.CHANNELS, length.HEADS, PatternSource(Full()),
                               norm_first=False)
    along_edges.load_state_dict(layer.state_dict())
    x, ptr = torch.randn(9, length.CHANNELS), torch.tensor([0, 9])
    torch.testing.assert_close(layer(x, ptr), along_edges(x, ptr))


@pytest.mark.slow
def test_peak_by_length_sees_the_weights_that_are_formed():
    weights = 4 * length.HEADS * 1024**2  # bytes
    sdpa, eager = (elsewhere(length.peak_of_training, case, 1024) for case in length.FULL)
    assert sdpa + 2 * weights < eager < 4.5 * weights  # in the backward pass there are three


@pytest.mark.slow
def test_recomputed_diffusion_takes_less_memory_than_sdpa():
    sdpa, diffusion = (elsewhere(length.peak_of_training, case, 4096)
                       for case in ('full SDPA', 'Diffuser, 5 hops, recomputed'))
    assert diffusion < sdpa
