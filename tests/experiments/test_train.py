"""The training command: what it leaves, resuming after SIGKILL, two processes, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments import train

HERE = Path(__file__).parent
CONFIG = str(HERE / 'config.yaml')
ENCODER = '--model.init_args.model.init_args.encoder.init_args'


def fit(folder, *options):
    train.main(['fit', '--config', CONFIG, '--trainer.default_root_dir', str(folder), *options])


def start(folder, *options):
    command = [sys.executable, '-m', 'experiments.train', 'fit', '--config', CONFIG,
               '--trainer.default_root_dir', str(folder), *options]
    return subprocess.Popen(command, cwd=HERE.parents[1], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env={**os.environ, 'OMP_NUM_THREADS': '1'})


def finish(process):
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    return output


def load(folder):
    return torch.load(folder / 'checkpoints/last.ckpt', weights_only=True)


@pytest.fixture(scope='module')
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs') / 'run'
    return folder, finish(start(folder))


def test_run_leaves_one_folder(finished_run):
    folder, output = finished_run
    names = {path.name for path in folder.iterdir()}
    assert names == {'config.yaml', 'metrics.csv', 'summary.json', 'checkpoints', 'curves.png',
                     'received_attention.png'}
    assert [path.name for path in (folder / 'checkpoints').iterdir()] == ['last.ckpt']
    summary = json.loads((folder / 'summary.json').read_text())
    assert set(summary) == {'accuracy', 'loss', 'density', 'epochs', 'seconds', 'parameters',
                            'seed', 'processes', 'threads', 'versions'}
    assert set(summary['density']) == {'layer0/head0', 'layer0/head1'}
    assert summary['seed'] == 3 and summary['epochs'] == 4
    metrics = pd.read_csv(folder / 'metrics.csv')
    assert metrics['epoch'].tolist() == [0, 1, 2, 3]
    assert {'train/loss', 'val/accuracy', 'val/density/layer0/head1'} <= set(metrics.columns)
    assert f'test accuracy              {summary["accuracy"]:.4f}' in output
    assert str(folder / 'received_attention.png') in output


def test_resolved_config_gives_the_same_run(finished_run, tmp_path):
    folder, _ = finished_run
    train.main(['fit', '--config', str(folder / 'config.yaml'),
                '--trainer.default_root_dir', str(tmp_path)])
    mine, theirs = load(tmp_path)['state_dict'], load(folder)['state_dict']
    if torch.get_num_threads() == 1:
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_killed_run_resumes_bit_for_bit(finished_run, tmp_path):
    folder, _ = finished_run
    process = start(tmp_path)
    metrics = tmp_path / 'metrics.csv'
    deadline = time.time() + 240
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished_epochs = len(load(tmp_path)['callbacks']['RunFolder']['history'])
    assert 1 <= finished_epochs < 4 and not (tmp_path / 'summary.json').exists()

    finish(start(tmp_path, '--ckpt_path', str(tmp_path / 'checkpoints/last.ckpt')))
    mine, theirs = load(tmp_path), load(folder)
    assert mine['global_step'] == theirs['global_step'] == 20
    for name, value in theirs['state_dict'].items():
        assert torch.equal(mine['state_dict'][name], value), name
    assert (mine['callbacks']['RunFolder']['history']
            == theirs['callbacks']['RunFolder']['history'])
    assert 'ckpt_path' not in (tmp_path / 'config.yaml').read_text()
    my_summary, their_summary = (json.loads((run / 'summary.json').read_text())
                                 for run in (tmp_path, folder))
    for name in ('accuracy', 'loss', 'density', 'epochs'):
        assert my_summary[name] == their_summary[name]


def test_two_processes_end_with_equal_parameters(tmp_path):
    output = finish(start(tmp_path, '--trainer.devices', '2', '--trainer.strategy', 'ddp',
                          '--trainer.max_epochs', '2',
                          '--trainer.callbacks+=tests.experiments.callbacks.SaveParameters'))
    first, second = (torch.load(tmp_path / f'rank{rank}.pt', weights_only=True)
                     for rank in range(2))
    assert all(torch.equal(first['parameters'][name], second['parameters'][name])
               for name in first['parameters'])
    assert first['num_edges'] != second['num_edges']
    assert json.loads((tmp_path / 'summary.json').read_text())['processes'] == 2
    assert output.count('test accuracy') == 1


def test_evaluating_a_checkpoint_gives_the_same_numbers_each_time(finished_run, tmp_path):
    folder, _ = finished_run
    for name in ('first', 'again'):
        train.main(['test', '--config', CONFIG, '--trainer.default_root_dir',
                    str(tmp_path / name), '--ckpt_path', str(folder / 'checkpoints/last.ckpt')])
    first, again, fitted = (json.loads((run / 'summary.json').read_text()) for run in
                            (tmp_path / 'first', tmp_path / 'again', folder))
    for name in ('accuracy', 'loss', 'density'):
        assert first[name] == again[name] == pytest.approx(fitted[name], rel=1e-6)


def test_a_folder_of_another_run_is_refused_and_left_alone(finished_run):
    folder, _ = finished_run
    before = {path: path.read_bytes() for path in folder.glob('*.*')}
    with pytest.raises(ValueError, match="'trainer.default_root_dir' holds another run"):
        fit(folder, '--model.init_args.lr', '0.5')
    assert before == {path: path.read_bytes() for path in folder.glob('*.*')}


def test_a_checkpoint_of_another_model_is_refused(finished_run, tmp_path):
    checkpoint = str(finished_run[0] / 'checkpoints/last.ckpt')
    with pytest.raises(ValueError, match="'ckpt_path' holds another model: .* there and .* here"):
        fit(tmp_path, '--ckpt_path', checkpoint,
            f'{ENCODER}.channels', '16', f'{ENCODER}.source.init_args.head_channels', '8')


@pytest.mark.parametrize('content', [None, b'', b'not a checkpoint'])
def test_an_unreadable_checkpoint_is_refused(content, tmp_path):
    checkpoint = tmp_path / 'last.ckpt'
    if content is not None:
        checkpoint.write_bytes(content)
    with pytest.raises(ValueError, match=f"'ckpt_path' cannot be read: {checkpoint}"):
        fit(tmp_path / 'run', '--ckpt_path', str(checkpoint))
    assert not (tmp_path / 'run').exists()


def test_unseeded_runs_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv('PL_GLOBAL_SEED', raising=False)
    with pytest.raises(ValueError, match="'seed_everything' must be a number, or true"):
        fit(tmp_path / 'run', '--seed_everything', 'false')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('option, word', [
    ('--model.init_args.learning_rate=1', 'learning_rate'),
    ('--model.init_args.lr=fast', 'fast'),
    ('--data.class_path=experiments.tasks.Digit', 'Digit'),
    (f'{ENCODER}.source.init_args.cluster=3', 'cluster'),
])
def test_a_config_key_or_value_that_does_not_exist(option, word, tmp_path, capsys):
    with pytest.raises(SystemExit):
        fit(tmp_path / 'run', option)
    assert word in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_two_processes_divide_drawn_batches_once(tmp_path):
    config = HERE.parents[1] / 'experiments/configs/duplicates/full.yaml'
    command = [sys.executable, '-m', 'experiments.train', 'fit', '--config', str(config),
               '--trainer.default_root_dir', str(tmp_path), '--trainer.max_epochs', '1',
               '--trainer.devices', '2', '--trainer.strategy', 'ddp', '--trainer.accelerator',
               'cpu', '--data.init_args.steps_per_epoch', '3', '--data.init_args.batch_size', '2']
    subprocess.run(command, cwd=HERE.parents[1], check=True,
                   env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert load(tmp_path)['global_step'] == 3
