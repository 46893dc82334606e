"""Weights that are no numbers, or whose outputs are none, give no results in any command."""

import shutil

import numpy as np
import pytest
import torch

from analysis.commands import main
from experiments import load_run, predict, train
from experiments.cli import CONFIGS
from experiments.runs.checkpoints import LAST, write_checkpoint
from experiments.runs.pretrained import load_encoder
from graphattn.hugging_face import profile

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    train.main(['fit', '--config', str(CONFIGS / 'digits/sbm.yaml'), '--trainer.max_epochs=1',
                f'--trainer.default_root_dir={folder}', '--trainer.limit_train_batches=2',
                '--trainer.limit_test_batches=1', '--trainer.enable_progress_bar=false'])
    return folder


def fill(name, value):
    """Fill a parameter of the checkpoint of a run."""
    def damage(run):
        path = run / 'checkpoints' / LAST
        saved = torch.load(path, weights_only=True)
        saved['state_dict'][name].fill_(value)
        write_checkpoint(saved, path)
    return damage


DAMAGE = {'NaN': fill('model.encoder.token_embedding.weight', torch.nan),
          'infinite': fill('model.encoder.token_embedding.weight', torch.inf),
          'too large': fill('model.encoder.norm.weight', 3e38)}


def run_command(command, *options):
    def run(folder, out):
        train.main([command, '--config', str(folder / 'config.yaml'), '--ckpt_path',
                    str(folder / 'checkpoints' / LAST), f'--trainer.default_root_dir={out}',
                    *options])
    return run


def run_predict(folder, out):
    np.save(folder / 'images.npy', np.ones((3, 64), dtype=int))
    predict.predict(str(folder), str(folder / 'images.npy'), str(out / 'predictions.csv'))


def run_spectrum(folder, out):
    with pytest.raises(SystemExit) as stop:
        main(['spectrum', '--checkpoint', str(folder), '--weights', '--out', str(out)])
    raise ValueError(stop.value.code)


COMMANDS = {'test': run_command('test'), 'validate': run_command('validate'),
            'predict': run_predict, 'spectrum': run_spectrum,
            'load_encoder': lambda folder, _: load_encoder(load_run(folder).module.model.encoder,
                                                           folder / 'checkpoints' / LAST)}


@pytest.mark.parametrize('command, damage', [
    *((command, 'NaN') for command in COMMANDS), ('test', 'infinite'), ('load_encoder', 'infinite'),
    ('test', 'too large'), ('predict', 'too large')])  # which run the model
def test_numbers_that_are_not_finite_are_no_results(command, damage, trained, tmp_path):
    shutil.copytree(trained, tmp_path / 'run')
    DAMAGE[damage](tmp_path / 'run')
    with pytest.raises(ValueError):
        COMMANDS[command](tmp_path / 'run', tmp_path / 'out')
    assert not [path for path in tmp_path.glob('out/**/*') if path.is_file()]


def test_a_profile_of_weights_that_are_no_numbers_is_refused():
    transformers = pytest.importorskip('transformers')
    bert = transformers.BertModel(transformers.BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8))
    bert.encoder.layer[0].attention.self.query.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite in the attention of 'model'"):
        profile(bert, [torch.randint(10, (2, 6))])
