"""Contract of every baseline: it takes the place of graph attention, and pads nothing."""

import copy
import inspect
import json
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor

from experiments import baselines, train
from experiments.baselines import (
    Combiner,
    Linear,
    Linformer,
    Nystromformer,
    Performer,
    Reformer,
    Sinkhorn,
    Synthesizer,
)
from experiments.modules import Classification
from graphattn.layers import EncoderLayer, GraphAttention
from graphattn.models import Encoder, SequenceClassifier
from graphattn.patterns import Full, SlidingWindow
from graphattn.sources import PatternSource

CHANNELS, HEADS, MAX_LENGTH = 8, 2, 23
PTR = torch.tensor([0, 9, 9, 32, 33, 42])  # 9, 0, 23, 1 and 9 tokens
SIZES = dict(num_tokens=11, max_length=MAX_LENGTH, channels=CHANNELS, heads=HEADS, num_layers=2)
BASELINES = {
    'combiner': partial(Combiner, block=3),
    'linear': Linear,
    'linear, released': partial(Linear, form='released'),
    'linformer': partial(Linformer, max_length=MAX_LENGTH, rank=4),
    'nystromformer': partial(Nystromformer, landmarks=4, kernel_size=3),
    'nystromformer without convolution': partial(Nystromformer, landmarks=4, kernel_size=None),
    'performer': partial(Performer, features=16),
    'performer, relu': partial(Performer, features=16, kernel='relu'),
    'reformer': partial(Reformer, chunk=3),
    'sinkhorn': partial(Sinkhorn, max_length=MAX_LENGTH, block=3),
    'synthesizer': partial(Synthesizer, max_length=MAX_LENGTH),
    'synthesizer, random': partial(Synthesizer, max_length=MAX_LENGTH, form='random'),
}


@pytest.fixture(params=BASELINES)
def baseline(request) -> baselines.Baseline:
    torch.manual_seed(0)
    return BASELINES[request.param](CHANNELS, HEADS).double()


def tokens(num_tokens: int = int(PTR[-1])) -> Tensor:
    return torch.randn(num_tokens, CHANNELS, dtype=torch.double,
                       generator=torch.Generator().manual_seed(1))


def run(baseline: baselines.Baseline, x: Tensor, ptr: Tensor = PTR, seed: int = 3) -> Tensor:
    return baseline(x, ptr, generator=torch.Generator().manual_seed(seed))


def test_every_baseline_is_among_them():
    exported = {getattr(baselines, name) for name in baselines.__all__} - {baselines.Baseline}
    assert {getattr(make, 'func', make) for make in BASELINES.values()} == exported


def test_a_sequence_does_not_depend_on_its_batch(baseline):
    x, out = tokens(), run(baseline, tokens())
    assert out.shape == x.shape and out.isfinite().all()
    for first, last in zip(PTR[:-1], PTR[1:]):
        alone = run(baseline, x[first:last], torch.tensor([0, last - first]))
        torch.testing.assert_close(out[first:last], alone)


def test_values_of_the_longest_sequence_reach_no_other(baseline):
    x = tokens().requires_grad_()
    out = run(baseline, x)
    grad, = torch.autograd.grad(out[:9].sum() + out[32:].sum(), x)
    assert not grad[9:32].any() and grad[:9].any() and grad[33:].any()
    assert grad[32].any()  # the sequence of one token sees itself


def test_every_token_of_a_short_sequence_is_seen(baseline):
    x = tokens(5).requires_grad_()
    out = run(baseline, x, torch.tensor([0, 5]))
    grad, = torch.autograd.grad(out[0].sum(), x)
    assert (grad[1:].abs().amax(dim=1) > 0).all()


def test_gradients_are_those_of_finite_differences(baseline):
    x = tokens(12).requires_grad_()
    ptr = torch.tensor([0, 7, 7, 8, 12])
    assert torch.autograd.gradcheck(lambda x: run(baseline, x, ptr), x, fast_mode=True)


def test_every_parameter_learns(baseline):
    run(baseline, tokens()).square().sum().backward()
    for name, parameter in baseline.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


@pytest.mark.parametrize('dtype', [torch.float, torch.bfloat16, torch.half])
def test_lower_precision_gives_the_same_numbers_less_exactly(baseline, dtype):
    if isinstance(baseline, Reformer):  # whose hash is another one where numbers round
        baseline.chunk = MAX_LENGTH
    expected = run(baseline, tokens())
    out = run(baseline.to(dtype), tokens().to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4 if dtype == torch.float
                               else 5e-2)


def test_autocast(baseline):
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = run(baseline.float(), tokens().float().requires_grad_())
        out.float().sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in baseline.parameters())


def test_copies_do_what_the_original_does(baseline):
    run(baseline, tokens()).sum().backward()
    for copied in copy.deepcopy(baseline), pickle.loads(pickle.dumps(baseline)):
        torch.testing.assert_close(run(copied, tokens()), run(baseline, tokens()), rtol=0, atol=0)


def test_a_state_dict_is_the_whole_of_it(baseline):
    other = copy.deepcopy(baseline)
    other.reset_parameters()
    assert not torch.equal(run(other, tokens()), run(baseline, tokens()))
    other.load_state_dict(baseline.state_dict())
    torch.testing.assert_close(run(other, tokens()), run(baseline, tokens()), rtol=0, atol=0)


def test_the_seed_decides_in_training_and_in_evaluation(baseline):
    out = run(baseline.train(), tokens())
    torch.testing.assert_close(run(baseline.eval(), tokens()), out, rtol=0, atol=0)
    for _ in range(2):
        torch.manual_seed(7)
        torch.testing.assert_close(baseline(tokens(), PTR), run(baseline, tokens(), seed=7), rtol=0,
                                   atol=0)
    others = [run(baseline, tokens(), seed=seed) for seed in range(5)]
    assert baseline.is_random == any(not torch.equal(other, out) for other in others)


def test_no_tokens(baseline):
    for ptr in (torch.tensor([0]), torch.tensor([0, 0, 0])):
        assert run(baseline, tokens(0), ptr).shape == (0, CHANNELS)


def test_another_width_of_head(baseline):
    parameters = inspect.signature(type(baseline)).parameters
    options = {name: getattr(baseline, name) for name in parameters
               if hasattr(baseline, name) and name != 'head_channels'}
    wide = type(baseline)(**options, head_channels=6).double()
    assert wide.lin_value.out_features == 6 * HEADS
    assert run(wide, tokens()).shape == tokens().shape


@pytest.mark.parametrize('arguments, name', [
    (dict(x=tokens()[:, 1:]), 'x'), (dict(x=tokens().float()), 'x'), (dict(x=3), 'x'),
    (dict(ptr=PTR + 1), 'ptr'), (dict(ptr=PTR.float()), 'ptr'), (dict(ptr=[0, 42]), 'ptr'),
    (dict(ptr=torch.tensor([0, 30, 20, 42])), 'ptr'),
    (dict(graph=Full().build(42)), 'graph'), (dict(source=PatternSource(Full())), 'source'),
    (dict(generator=3), 'generator'), (dict(return_graph=1), 'return_graph')])
def test_a_bad_argument_is_named(arguments, name):
    with pytest.raises((TypeError, ValueError), match=f"'{name}'"):
        Linear(CHANNELS, HEADS).double()(**{'x': tokens(), 'ptr': PTR, **arguments})


@pytest.mark.parametrize('name', BASELINES)
def test_a_bad_option_is_named(name):
    make = BASELINES[name]
    function = getattr(make, 'func', make)
    for option, parameter in inspect.signature(function).parameters.items():
        for bad in (['nosuch', 3] if 'Literal' in str(parameter.annotation) else
                    [0, -1, 2.5, True, '3']):
            with pytest.raises((TypeError, ValueError), match=f"'{option}'"):
                make(**{'channels': CHANNELS, 'heads': HEADS, option: bad})


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="'channels' must be a multiple of 'heads'"):
        Linear(7, 2)
    with pytest.raises(ValueError, match="'kernel_size' must be odd"):
        Nystromformer(8, 2, kernel_size=4)
    with pytest.raises(ValueError, match="at most 22 tokens, the 'max_length' of Linformer"):
        run(Linformer(CHANNELS, HEADS, 22).double(), tokens())


def test_an_encoder_runs_its_layers_again(baseline):
    plain = Encoder(attention=baseline, **SIZES).double()
    again = Encoder(attention=baseline, **SIZES, checkpoint_layers=True).double()
    again.load_state_dict(plain.state_dict())
    ids = torch.randint(11, (42,), generator=torch.Generator().manual_seed(2))
    grads = []
    for encoder in (plain, again):
        out = encoder(ids, PTR, generator=torch.Generator().manual_seed(3))
        grads.append(torch.autograd.grad(out.square().sum(), list(encoder.parameters()),
                                         allow_unused=True))
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize('options, name', [
    (dict(source=PatternSource(Full())), 'source'), (dict(hops=2), 'hops'),
    (dict(attention_dropout=.1), 'attention_dropout'), (dict(share_source=True), 'share_source'),
    (dict(attention=Linear(8, 4)), 'attention'), (dict(attention='linear'), 'attention'),
    (dict(attention=Linformer(8, 2, 22)), 'max_length')])
def test_what_an_encoder_cannot_mean(options, name):
    with pytest.raises((TypeError, ValueError), match=f"'{name}'"):
        Encoder(**{'attention': Linear(CHANNELS, HEADS), **SIZES, **options})


@pytest.mark.slow
def test_graph_attention_stands_in_that_place_too():
    layers = [EncoderLayer(CHANNELS, HEADS, PatternSource(SlidingWindow(1))),
              EncoderLayer(CHANNELS, HEADS, attention=GraphAttention(
                  CHANNELS, HEADS, PatternSource(SlidingWindow(1))))]
    layers[1].load_state_dict(layers[0].state_dict())
    x, ptr = torch.randn(12, CHANNELS), torch.tensor([0, 5, 12])
    torch.testing.assert_close(layers[0](x, ptr), layers[1](x, ptr))


CONFIG = 'experiments/configs/digits/nystromformer.yaml'


@pytest.mark.slow
def test_training_tests_and_resumes(tmp_path):
    small = ['--trainer.max_epochs', '1', '--trainer.limit_train_batches', '2',
             '--trainer.limit_val_batches', '1', '--trainer.limit_test_batches', '1',
             '--trainer.accelerator', 'cpu', '--trainer.default_root_dir', str(tmp_path)]
    train.main(['fit', '--config', CONFIG, *small])
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['density'] == {} and summary['heads_without_edges'] == []
    assert 0. <= summary['accuracy'] <= 1.
    names = {path.name for path in tmp_path.iterdir()}
    assert 'curves.png' in names and 'received_attention.png' not in names
    state = torch.load(tmp_path / 'checkpoints/last.ckpt', weights_only=True)['state_dict']
    assert 'model.encoder.layers.0.attention.conv.weight' in state


def test_a_density_penalty_needs_densities():
    encoder = Encoder(attention=Linear(8, 2), num_tokens=5, max_length=4, channels=8, heads=2,
                      num_layers=1)
    with pytest.raises(ValueError, match="'density_weight' requires a model"):
        Classification(SequenceClassifier(encoder, 2), density_weight=.1)
