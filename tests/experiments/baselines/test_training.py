"""A baseline is named in a config, as a source is."""

from __future__ import annotations

import json

import pytest
import torch

from experiments import train
from experiments.baselines import Linear
from experiments.modules import Classification
from graphattn.models import Encoder, SequenceClassifier

pytestmark = pytest.mark.slow

CONFIG = 'experiments/configs/digits/nystromformer.yaml'
ENCODER = '--model.init_args.model.init_args.encoder.init_args'


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
