"""A trained run comes back as it was tested."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from analysis.runs import _load_run
from experiments import predict, train
from experiments.cli import CONFIGS
from experiments.runs.load_run import load_run

pytestmark = pytest.mark.slow

DIGITS = CONFIGS / 'digits/full.yaml'


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    train.main(['fit', '--config', str(DIGITS), '--trainer.default_root_dir', str(folder),
                '--trainer.max_epochs', '1', '--trainer.limit_train_batches', '2',
                '--trainer.enable_progress_bar', 'false'])
    return folder


def test_a_run_is_as_right_as_it_was(run):
    module, data, config, tokenizer, classes = load_run(run)
    data.prepare_data()
    data.setup('test')
    right = [module.model(tokens, ptr).argmax(dim=1) == label
             for tokens, ptr, label in data.test_dataloader()]
    accuracy = json.loads((run / 'summary.json').read_text())['accuracy']
    assert float(torch.cat(right).float().mean()) == pytest.approx(accuracy)
    assert tokenizer is None and classes is None
    assert not module.training and config['trainer']['max_epochs'] == 1


def test_analysis_measures_the_tested_weights(run, tmp_path):
    """Those that the run has selected, which need not be its last ones."""
    folder = tmp_path / 'run'
    shutil.copytree(run, folder)
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    config['select_on'] = 'val/loss'
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    (folder / 'checkpoints/last.ckpt').rename(folder / 'checkpoints/best.ckpt')
    loaded, (measured, _) = load_run(folder).module.model, _load_run(folder, ())
    for name, weight in loaded.state_dict().items():
        assert torch.equal(measured.state_dict()[name], weight), name


def test_images_without_labels_are_an_array(run, tmp_path):
    trained = load_run(run)
    trained.data.setup('test')
    image, _ = trained.data.test[:5]
    np.save(tmp_path / 'images.npy', image.numpy())
    names, probability = zip(*predict.predictions(trained, tmp_path / 'images.npy', batch_size=3))
    assert names == (['0', '1', '2'], ['3', '4'])
    with torch.no_grad():
        expected = trained.module.model(image.flatten(), 64 * torch.arange(6)).softmax(dim=1)
    torch.testing.assert_close(torch.from_numpy(np.concatenate(probability)), expected)


def test_rows_that_are_no_images_are_refused(run, tmp_path):
    np.save(tmp_path / 'rows.npy', np.zeros((3, 10), dtype=int))
    with pytest.raises(ValueError, match=r'rows.npy, row 0: expected 64 grey levels .got 10'):
        list(predict.predictions(load_run(run), tmp_path / 'rows.npy'))


def test_a_config_that_is_not_whole_or_of_another_model_is_refused(run):
    config = run / 'config.yaml'
    text = config.read_text()
    without = {name: value for name, value in yaml.safe_load(text).items() if name != 'data'}
    for other, problem in ((yaml.safe_dump(without), f"{config}: field 'data' is missing"),
                           (text.replace('num_layers: 2', 'num_layers: 1'), 'do not fit')):
        config.write_text(other)
        with pytest.raises(ValueError, match=problem):
            load_run(run)
    config.write_text(text)
