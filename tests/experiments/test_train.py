"""The training command: what it leaves, resuming, two processes, bad input."""

import contextlib
import io
import json
import os
import shutil
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from select import select

import pandas as pd
import pytest
import torch

from experiments import train
from experiments.runs.checkpoints import BEST, LAST, PREVIOUS, write_checkpoint
from experiments.runs.command import run_or_exit
from tests.forked import forked

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CONFIG = str(HERE / 'config.yaml')
ENCODER = '--model.init_args.model.init_args.encoder.init_args'


def run(subcommand, folder, *options):
    train.main([subcommand, '--config', CONFIG, '--trainer.default_root_dir', str(folder),
                *options])


def fit(folder, *options):
    run('fit', folder, *options)


def fit_in_two(folder, *options):
    return forked(lambda: run_or_exit(lambda: fit(folder, *TWO, *options)), ranks=2)


def finish(processes):
    assert [process.returncode for process in processes] == [0, 0], processes
    return ''.join(process.stdout for process in processes)


def load(folder):
    return torch.load(folder / 'checkpoints' / LAST, weights_only=True)


@pytest.fixture(scope='module')
def finished_run(tmp_path_factory):
    folder, output = tmp_path_factory.mktemp('runs') / 'run', io.StringIO()
    with contextlib.redirect_stdout(output):
        fit(folder)
    return folder, output.getvalue()


def test_run_leaves_one_folder(finished_run):
    folder, output = finished_run
    names = {path.name for path in folder.iterdir()}
    assert names == {'config.yaml', 'metrics.csv', 'summary.json', 'checkpoints', 'curves.png',
                     'received_attention.png'}
    assert {path.name for path in (folder / 'checkpoints').iterdir()} == {LAST, PREVIOUS}
    summary = json.loads((folder / 'summary.json').read_text())
    assert set(summary) == {'accuracy', 'baseline_accuracy', 'loss', 'density', 'epochs',
                            'tested_after_epoch', 'tested_after_step', 'seconds', 'compile_seconds',
                            'parameters', 'heads_without_edges', 'seed', 'processes', 'threads',
                            'versions', 'inputs'}
    assert set(summary['density']) == {'layer0/head0', 'layer0/head1'}
    assert summary['seed'] == 3 and summary['epochs'] == summary['tested_after_epoch'] == 4
    assert summary['heads_without_edges'] == []
    metrics = pd.read_csv(folder / 'metrics.csv')
    assert metrics['epoch'].tolist() == [1, 2, 3, 4]
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


def test_the_checkpoint_that_is_best_on_development_is_tested(tmp_path):
    options = '--select_on', 'val/loss', '--model.init_args.decay', 'one-cycle', \
        '--model.init_args.lr', '0.3'
    fit(tmp_path, *options)
    tested = json.loads((tmp_path / 'summary.json').read_text())
    metrics = pd.read_csv(tmp_path / 'metrics.csv')
    best = tmp_path / 'checkpoints' / BEST
    row = metrics.loc[metrics['val/loss'].idxmin()]
    assert torch.load(best, weights_only=True)['global_step'] == row['step']
    assert tested['epochs'] == len(metrics) and tested['tested_after_epoch'] == row['epoch']
    run('test', tmp_path, *options, '--ckpt_path', str(best))
    again = json.loads((tmp_path / 'summary.json').read_text())
    assert (again['accuracy'], again['loss']) == (tested['accuracy'], tested['loss'])


@pytest.mark.parametrize('decay', ['one-cycle', 'rsqrt'])
def test_a_run_resumes_in_every_schedule(decay, tmp_path):
    options = ('--select_on', 'val/loss', '--model.init_args.decay', decay,
               '--trainer.max_epochs', '2')
    fit(tmp_path / 'whole', *options)
    shutil.copytree(tmp_path / 'whole', tmp_path / 'cut')
    checkpoints = tmp_path / 'cut/checkpoints'
    (checkpoints / LAST).unlink()
    fit(tmp_path / 'cut', *options, '--ckpt_path', str(checkpoints / PREVIOUS))
    assert_same_run(tmp_path / 'cut', tmp_path / 'whole', steps=6)
    mine, theirs = (json.loads((tmp_path / name / 'summary.json').read_text())
                    for name in ('cut', 'whole'))
    assert mine['loss'] == theirs['loss']


def assert_same_run(mine, theirs, steps):
    mine, theirs = load(mine), load(theirs)
    assert mine['global_step'] == theirs['global_step'] == steps
    for name, value in theirs['state_dict'].items():
        assert torch.equal(mine['state_dict'][name], value), name
    assert (mine['callbacks']['RunFolder']['history']
            == theirs['callbacks']['RunFolder']['history'])


TWO = ['--trainer.devices', '2', '--trainer.strategy', 'ddp', '--trainer.max_epochs', '2']


@pytest.fixture(scope='module')
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs') / 'two'
    return folder, finish(fit_in_two(
        folder, '--trainer.callbacks+=tests.experiments.callbacks.SaveParameters'))


def test_two_processes_end_with_equal_parameters(two_processes):
    folder, output = two_processes
    first, second = (torch.load(folder / f'rank{rank}.pt', weights_only=True)
                     for rank in range(2))
    assert all(torch.equal(first['parameters'][name], second['parameters'][name])
               for name in first['parameters'])
    assert first['num_edges'] != second['num_edges']
    assert json.loads((folder / 'summary.json').read_text())['processes'] == 2
    assert output.count('test accuracy') == 1


def read_or_fail(inlet):
    """Return what was written into a pipe, or nothing when the last process that could has
    ended."""
    if not select([inlet], [], [], 30)[0]:
        pytest.fail('a process outlives the first')
    return os.read(inlet, 4096)


def test_two_processes_end_when_the_disk_is_full_and_resume(two_processes, tmp_path):
    """A process that Lightning starts must not outlive the first."""
    inlet, outlet = os.pipe()

    def command():
        for number in (1, 2):
            os.dup2(outlet, number)
        os.close(outlet)
        sys.stdout = sys.stderr = open(2, 'w', buffering=1)
        os.chdir(HERE.parents[1])
        os.environ['PYTHONWARNINGS'] = 'ignore'  # of packages that the other process imports
        sys.argv = ['train', 'fit', '--config', CONFIG, '--trainer.default_root_dir',
                    str(tmp_path), *TWO,
                    '--trainer.callbacks+=tests.experiments.callbacks.FullDisk',
                    '--trainer.callbacks.steps=4']
        sys.modules['__main__'] = train  # Lightning starts the same with the same arguments
        run_or_exit(train.main)

    process, = forked(command)
    assert process.returncode == 2
    os.close(outlet)
    lines = b''.join(iter(partial(read_or_fail, inlet), b'')).decode().splitlines()
    # torch 2.10 writes of Gloo, and each epoch has a line
    output, = [line for line in lines if not line.startswith(('[Gloo]', 'epoch '))]
    assert output.startswith('error: ') and output.endswith(LAST + "'")
    assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == [LAST]

    finish(fit_in_two(tmp_path, '--ckpt_path', str(tmp_path / 'checkpoints' / LAST)))
    assert_same_run(tmp_path, two_processes[0], steps=6)


def test_a_checkpoint_of_another_model_is_refused(finished_run, tmp_path):
    checkpoint = str(finished_run[0] / 'checkpoints/last.ckpt')
    with pytest.raises(ValueError, match="source.init_args.head_channels' must be 4, .*got 8"):
        fit(tmp_path, '--ckpt_path', checkpoint,
            f'{ENCODER}.channels', '16', f'{ENCODER}.source.init_args.head_channels', '8')


EARLY_STOPPING = ['--trainer.callbacks+=EarlyStopping', '--trainer.callbacks.monitor=val/loss']
REFUSED = [
    *(([f'--trainer.{option}={value}'], f"'trainer.{option}' must be at least {least} .got")
      for option, value, least in (
          ('accumulate_grad_batches', 0, 1), ('accumulate_grad_batches', -2, 1),
          ('check_val_every_n_epoch', 0, 1), ('gradient_clip_val', -1, 0))),
    (['--trainer.callbacks+=StochasticWeightAveraging', '--trainer.callbacks.swa_lrs=0.1'],
     "'trainer.callbacks' must not contain StochasticWeightAv"),
    *((options, fr"'trainer.callbacks' must .* \(got a second {key}\)") for options, key in (
        (['--trainer.callbacks+=experiments.runs.run_folder.RunFolder'], 'RunFolder'),
        (['--trainer.callbacks+=ModelCheckpoint'], "ModelCheckpoint{'monitor': None, .*}"),
        (EARLY_STOPPING * 2, "EarlyStopping{'monitor': 'val/loss', 'mode': 'min'}"))),
    # In another order than that of the data.
    (['--trainer.overfit_batches=2'], "'trainer.overfit_batches' must be 0, .*got 2"),
    # Processes of which nothing comes back.
    *(([f'--trainer.strategy={strategy}'], f"'trainer.strategy' must be .*got {strategy}")
      for strategy in ('ddp_spawn', 'ddp_fork_find_unused_parameters_true')),
    *(([f'--trainer.limit_test_batches={limit}', f'--seeds={seeds}'],
       "'trainer.limit_test_batches' must not be 0, .*got 0")
      for limit in ('0', '0.0') for seeds in ('null', '2')),
    (['--trainer.max_epochs=-1', '--trainer.max_time=00:00:10:00'],
     "'trainer.max_epochs' or 'trainer.max_steps' must be"),
    (['--select_on=val/density/x'], "'select_on' must .*metric .*got 'val/density/x'"),
]


@pytest.mark.parametrize('options, match', REFUSED)
def test_what_cannot_be_meant_is_refused_before_the_work(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        fit(tmp_path / 'run', *options)
    assert not (tmp_path / 'run').exists()


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'trainer.default_root_dir' must be a path in UTF-8"):
        fit(tmp_path / 'run\udcff')


def test_variables_of_slurm_without_srun_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv('SLURM_NTASKS', '2')
    with pytest.raises(ValueError, match='SLURM'):
        fit(tmp_path / 'run')


def test_a_checkpoint_without_an_end_is_refused(tmp_path):
    os.mkfifo(tmp_path / LAST)
    for path in '/dev/zero', tmp_path / LAST:
        with pytest.raises(ValueError, match=f"'ckpt_path' cannot be read: {path}"):
            fit(tmp_path / 'run', '--ckpt_path', str(path))


@pytest.mark.parametrize('checkpoint', [[], (), {}, {'state_dict': {}}], ids=str)
@pytest.mark.parametrize('write', [torch.save, write_checkpoint])
def test_a_checkpoint_of_something_else_is_refused(write, checkpoint, tmp_path):
    write(checkpoint, tmp_path / 'other.ckpt')
    with pytest.raises(ValueError, match="'ckpt_path' cannot be read"):
        fit(tmp_path / 'run', '--ckpt_path', str(tmp_path / 'other.ckpt'))


@pytest.mark.parametrize('subcommand', ['test', 'validate'])
def test_an_untrained_model_is_not_evaluated(subcommand, finished_run):
    folder, _ = finished_run
    before = (folder / 'summary.json').read_bytes()
    with pytest.raises(ValueError, match="'ckpt_path' must be given"):
        run(subcommand, folder)
    assert (folder / 'summary.json').read_bytes() == before


BOMB = 'a: &a [x, x, x]\n' + ''.join(
    f'{new}: &{new} [{", ".join([f"*{old}"] * 9)}]\n' for old, new in pairwise('abcdefghi'))


@pytest.mark.parametrize('options, words', [
    (['--model.init_args.lr=fast'], ['lr', 'fast']),
    (['--model.init_args.density_weight=-1'], ["'density_weight' must"]),
    (['--data.class_path=experiments.tasks.Digit'], ['Digit']),
    ([f'{ENCODER}.source.init_args.cluster=3'], ['cluster']),
    (['--seed_everything=false'], ["'seed_everything' must be", 'False']),
    (['--trainer.max_epochs=-3'], ["'trainer'", 'max_epochs', '-3']),
    (['--checkpoint_every=0'], ['checkpoint_every']), (['--nosuch=1'], ['--nosuch']),
    (['--config=nowhere.yaml'], ['nowhere.yaml']), ('a: [1\nb: {', ['line 1']),
    ('model: ' + 500 * '[' + 500 * ']', ['nested more than 100 levels deep']),
    (BOMB, ['more than 100,000 entries']), ('hello', ['hello'])])
def test_a_bad_argument_is_one_line(options, words, tmp_path, capsys):
    if isinstance(options, str):
        (tmp_path / 'bad.yaml').write_text(options)
        options = ['--config', str(tmp_path / 'bad.yaml')]
    with pytest.raises(SystemExit) as stop:
        run_or_exit(lambda: fit(tmp_path / 'run', *options))
    line, = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and line.startswith('error: ')
    assert all(word in line for word in words), line
    assert not (tmp_path / 'run').exists()


def test_a_head_that_loses_its_edges_is_named(tmp_path, capsys):
    fit(tmp_path, '--trainer.max_epochs=1', '--trainer.enable_progress_bar=true',
        '--trainer.callbacks+=tests.experiments.callbacks.LoseEdges')
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['heads_without_edges'] == ['layer0/head0']
    output = capsys.readouterr().out
    assert 'heads_without_edges=1' in output
    assert 'heads without edges of their own: layer0/head0\n' in output


@pytest.mark.parametrize('options', [[], ['--data.path', 'my.csv']])
def test_what_is_trained_must_be_said(options):
    with pytest.raises(ValueError, match="'config' .* as in graphattn train --config digits/"):
        train.main(['fit', *options])
