"""Pre-training on a task's own inputs, and what the task's own training takes up of it."""

import json

import pytest
import torch
import yaml

from experiments import train
from experiments.baselines import Linear
from experiments.data.batch import TokenBatch
from experiments.modules import Classification, SelfPretraining
from graphattn.models import CausalLanguageModel, Encoder, SequenceClassifier
from graphattn.sources import LearnedMaskSource, PatternSource

CONFIGS = 'experiments/configs/lra'
ENCODER = '--model.init_args.model.init_args.encoder.init_args'
SIZES = {'num_tokens': 10, 'max_length': 8, 'channels': 8, 'heads': 2, 'num_layers': 1}
PTR = torch.tensor([0, 3, 3, 4, 8])
TOKENS = torch.tensor([1, 2, 0, 4, 0, 6, 7, 8])


def encoder(source=None, **options):
    return Encoder(source or PatternSource('Full'), **{**SIZES, **options})


def loss_of(model, monkeypatch):
    module = SelfPretraining(model)
    monkeypatch.setattr(module, 'log_dict', lambda *args, **kwargs: None)
    return module.training_step(TokenBatch(TOKENS, PTR, torch.zeros(4).long()), 0)


def test_the_loss_is_that_of_each_next_token(monkeypatch):
    torch.manual_seed(0)
    model = CausalLanguageModel(encoder(causal=True))
    log_prob = model(TOKENS, PTR).log_softmax(dim=1)
    expected = -sum(log_prob[i, TOKENS[i + 1]] for i in (0, 1, 4, 5, 6)) / 5
    torch.testing.assert_close(loss_of(model, monkeypatch), expected)


BLOCK_MODEL = {'class_path': 'graphattn.sources.BlockModelSource', 'init_args': {
    'heads': 2, 'head_channels': 4, 'clusters': 4, 'fixed': 'SlidingWindow(1)'}}


def fit(folder, *options):
    sizes = {'channels': 8, 'heads': 2, 'num_layers': 2, 'hidden_channels': 8}
    train.main(['fit', '--config', f'{CONFIGS}/clean.yaml',
                '--config', f'{CONFIGS}/clean/image_standin.yaml',
                '--trainer.max_steps', '4', '--trainer.val_check_interval', '2',
                '--trainer.limit_test_batches', '1', '--trainer.accelerator', 'cpu',
                '--trainer.enable_progress_bar', 'false',
                '--trainer.default_root_dir', str(folder), *options,
                *(f'{ENCODER}.{name}={value}' for name, value in sizes.items()),
                f'{ENCODER}.source={json.dumps(BLOCK_MODEL)}'])


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
    """Pre-train in half precision, as on a GPU."""
    folder = tmp_path_factory.mktemp('pretrained')
    fit(folder, '--config', f'{CONFIGS}/self_pretraining.yaml', '--trainer.precision', 'bf16-mixed',
        '--model.init_args.density_weight', '0.1')
    return folder


def state(run, name='best'):
    return torch.load(run / 'checkpoints' / f'{name}.ckpt', weights_only=True)['state_dict']


@pytest.mark.slow
def test_a_run_of_half_precision_learns_in_single(pretrained):
    summary = json.loads((pretrained / 'summary.json').read_text())
    assert 0. < summary['loss'] < 4. and all(
        0.1 < density < 0.55 for density in summary['density'].values())  # at most the past
    assert {value.dtype for value in state(pretrained).values()} == {torch.float32}
    assert yaml.safe_load((pretrained / 'config.yaml').read_text())['model']['init_args']['model'][
        'init_args']['encoder']['init_args']['causal']


@pytest.mark.slow
def test_the_classifier_begins_with_the_encoder(pretrained, tmp_path):
    checkpoint = str(pretrained / 'checkpoints/best.ckpt')
    fit(tmp_path, '--model.init_args.pretrained', checkpoint, '--model.init_args.lr', '1e-12',
        '--model.init_args.weight_decay', '0')
    mine, theirs = state(tmp_path, 'last'), state(pretrained)
    taken = [name for name in mine if name.startswith('model.encoder.')]
    assert any(name.endswith('source.centroid') for name in taken)
    for name in taken:
        torch.testing.assert_close(mine[name], theirs[name])


def test_a_checkpoint_that_is_none_is_refused(tmp_path):
    (tmp_path / 'last.ckpt').write_text('x')
    for name in ('last.ckpt', 'none.ckpt'):
        with pytest.raises(ValueError, match="'pretrained' cannot be read"):
            Classification(SequenceClassifier(encoder(), 2), pretrained=str(tmp_path / name))


@pytest.mark.parametrize('options, match', [
    (dict(attention=Linear(8, 2)), "'causal' must.*False.*'attention'.*got True"),
    (dict(source=LearnedMaskSource(2, 8)), "'source' must.*causal.*got LearnedMaskSource"),
])
def test_what_has_no_causal_form_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Encoder(causal=True, **options, **SIZES)
