"""Runs that end anywhere and go on as if they had not; what is selected, told and kept."""

import atexit
import csv
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments import load_run, train
from experiments.papers.study import Study
from experiments.runs.checkpoints import BEST, LAST, PREVIOUS
from experiments.runs.command import run_or_exit
from experiments.runs.summary import read_summary
from experiments.train import best_is
from tests.experiments.callbacks import SENT
from tests.experiments.own_files import write_tokens
from tests.forked import forked

pytestmark = pytest.mark.slow

CONFIG = str(Path(__file__).parent / 'config.yaml')
CONFIGS = Path(__file__).parents[2] / 'experiments/configs'
CALLBACK = '--trainer.callbacks+=tests.experiments.callbacks.'
STEPWISE = '--trainer.check_val_every_n_epoch=null', '--trainer.val_check_interval=2'
SYNTHETIC = (f'--config={CONFIGS}/duplicates/full.yaml', '--data.length=16', '--data.batch_size=2',
             '--data.steps_per_epoch=3', '--data.eval_batches=1',
             '--model.density_weight=0')
# Learns nothing, so that the first epoch stays the best.
NO_BETTER = '--select_on=val/loss', '--model.lr=1e-30', '--trainer.max_epochs=2'
FULL = (f'--config={CONFIGS}/digits/full.yaml', '--model.density_weight=0')


def fit(folder, *options, config=CONFIG):
    train.main(['fit', '--config', config, *options, '--trainer.default_root_dir', str(folder),
                '--trainer.accelerator=cpu', '--trainer.enable_progress_bar=false'])


def fit_and_die(folder, callback, steps, *options):
    ended, = forked(lambda: fit(folder, f'{CALLBACK}{callback}',
                                f'--trainer.callbacks.steps={steps}', *options))
    assert ended.returncode == -signal.SIGKILL, ended
    (folder / 'config.yaml').unlink()  # which told of the callback


def resume(folder, *options):
    fit(folder, '--ckpt_path', str(folder / 'checkpoints' / LAST), *options)


def weights(folder, name=LAST):
    return torch.load(folder / 'checkpoints' / name, weights_only=True)


def history(folder):
    return pd.read_csv(folder / 'metrics.csv')


@pytest.mark.parametrize('callback, steps, options', [
    ('Kill', 5, [*SYNTHETIC, '--checkpoint_every=2']),
    ('Kill', 5, ['--checkpoint_every=1', '--trainer.accumulate_grad_batches=2',
                 '--trainer.limit_train_batches=5']),
    ('Kill', 4, ['--checkpoint_every=1', '--trainer.accumulate_grad_batches=2',
                 '--trainer.limit_train_batches=5']),
    ('KillInValidation', 4, ['--checkpoint_every=2', *STEPWISE]),
    ('KillInValidation', 6, ['--checkpoint_every=3']),
    ('Kill', 5, ['--checkpoint_every=4', *STEPWISE]),
], ids=['drawn', 'accumulated', 'accumulated behind an epoch', 'evaluating',
        'at the end of an epoch', 'evaluated'])
def test_a_run_that_dies_anywhere_ends_as_the_whole_one(callback, steps, options, tmp_path):
    options = [*options, '--select_on=val/loss', '--trainer.max_epochs=2']
    assert_ends_as_the_whole_one(callback, steps, options, tmp_path)


EVALUATED, NOT_EVALUATED = ['--select_on=val/loss'], ['--trainer.limit_val_batches=0']
STEPS = ['--trainer.max_steps=8', '--trainer.max_epochs=-1']
STEPS_AND_EPOCHS = ['--trainer.max_steps=8', '--trainer.max_epochs=9']


@pytest.mark.parametrize('steps, options', [
    (5, EVALUATED + STEPS), (6, EVALUATED + STEPS), (7, NOT_EVALUATED + STEPS),
    (5, EVALUATED + STEPS_AND_EPOCHS)])
def test_a_run_of_some_steps_ends_as_the_whole_one(steps, options, tmp_path):
    """An epoch has three steps; Lightning resumes such runs in another way."""
    assert_ends_as_the_whole_one('Kill', steps, ['--checkpoint_every=2', *options], tmp_path)


@cache
def whole_run(*options):
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    fit(folder, *options)
    return folder


def copy_of_a_run(folder, *options):
    """Copies a run that another test may have too, without what tells of its folder."""
    shutil.copytree(whole_run(*options), folder, ignore=shutil.ignore_patterns('config.yaml'))
    return folder


def assert_ends_as_the_whole_one(callback, steps, options, cut):
    whole = whole_run(*options)
    fit_and_die(cut, callback, steps, *options)
    resume(cut, *options)
    for name in (LAST, BEST):
        if not (whole / 'checkpoints' / name).exists():
            continue
        mine, theirs = weights(cut, name), weights(whole, name)
        assert mine['global_step'] == theirs['global_step']
        for key, value in theirs['state_dict'].items():
            assert torch.equal(mine['state_dict'][key], value), key
    columns = [name for name in history(whole) if not name.startswith('train/')]
    pd.testing.assert_frame_equal(history(cut)[columns], history(whole)[columns])
    assert untimed(cut) == untimed(whole)


def untimed(folder):
    summary = read_summary(folder)
    assert summary.pop('seconds') >= 0 and summary.pop('compile_seconds') >= 0
    return summary


def test_batches_whose_gradients_accumulate_draw_apart(tmp_path):
    fit(tmp_path, f'{CALLBACK}Seeds', '--trainer.accumulate_grad_batches=3',
        '--trainer.max_epochs=1')
    seeds = (tmp_path / 'seeds').read_text().split()
    assert len(set(seeds)) == len(seeds) == 3


def test_a_resumed_run_keeps_a_best_checkpoint_that_it_does_not_surpass(tmp_path):
    run = copy_of_a_run(tmp_path / 'run', *NO_BETTER)
    before, tested = weights(run, BEST)['global_step'], read_summary(run)
    assert before == 3 == weights(run, PREVIOUS)['global_step']
    (run / 'checkpoints' / LAST).unlink()
    resume(run, *NO_BETTER)
    assert weights(run, BEST)['global_step'] == before
    assert read_summary(run)['loss'] == tested['loss']


@pytest.mark.parametrize('take', [shutil.move, shutil.copytree])
def test_a_run_whose_folder_is_elsewhere_still_knows_its_best(take, tmp_path, recwarn):
    before = weights(copy_of_a_run(tmp_path / 'here', *NO_BETTER), BEST)['global_step']
    take(tmp_path / 'here', tmp_path / 'there')
    resume(tmp_path / 'there', *NO_BETTER, '--trainer.max_epochs=3')
    assert weights(tmp_path / 'there', LAST)['global_step'] == 9
    assert weights(tmp_path / 'there', BEST)['global_step'] == before == 3
    assert read_summary(tmp_path / 'there')['tested_after_step'] == before
    assert not [row for row in recwarn if 'dirpath has changed' in str(row.message)]


def test_a_run_that_was_stopped_early_is_trained_no_further(tmp_path, capsys):
    steps = 9
    options = (*NO_BETTER, '--trainer.min_epochs=3', '--trainer.max_epochs=4',
               '--trainer.callbacks+=EarlyStopping', '--trainer.callbacks.monitor=val/loss',
               '--trainer.callbacks.patience=1')
    fit(tmp_path, *options)
    before = read_summary(tmp_path)
    assert weights(tmp_path)['global_step'] == steps
    assert 'left to train' not in capsys.readouterr().out
    resume(tmp_path, *options)
    assert read_summary(tmp_path) == before
    assert f'nothing is left to train after step {steps}\n' in capsys.readouterr().out
    (tmp_path / 'checkpoints' / LAST).unlink()  # goes on from the epoch before
    resume(tmp_path, *options)
    assert weights(tmp_path)['global_step'] == steps


def test_the_better_direction_is_known_by_the_name():
    for metric in ('loss', 'mlm_loss', 'loss/dev', 'perplexity', 'bits_per_dim'):
        assert best_is(f'val/{metric}') == 'min'
    for metric in ('accuracy', 'macro_f1', 'matthews/dev', 'exact_match'):
        assert best_is(f'val/{metric}') == 'max'


def test_without_an_evaluation_the_last_weights_are_tested(tmp_path):
    with pytest.warns(UserWarning, match="testing the last weights: 'select_on' 'val/loss'"):
        fit(tmp_path, '--select_on=val/loss', '--trainer.limit_val_batches=0',
            '--trainer.max_epochs=1')
    assert read_summary(tmp_path)['tested_after_step'] == 3
    assert load_run(tmp_path).config['select_on'] == 'val/loss'


def test_a_row_has_what_its_epoch_measured(tmp_path):
    fit(tmp_path, '--trainer.check_val_every_n_epoch=2', '--select_on=val/loss')
    rows = list(csv.DictReader((tmp_path / 'metrics.csv').open()))
    assert [bool(row['val/loss']) for row in rows] == [False, True, False, True]
    assert all(row['train/loss'] for row in rows)
    best = weights(tmp_path, BEST)['global_step']
    summary = read_summary(tmp_path)
    assert summary['tested_after_step'] == best == 3 * summary['tested_after_epoch']


def test_a_part_of_an_epoch_makes_way_for_the_whole(tmp_path):
    fit(tmp_path, '--trainer.max_steps=2')
    assert history(tmp_path)['step'].tolist() == [2]
    (tmp_path / 'config.yaml').unlink()
    resume(tmp_path, '--trainer.max_steps=6')
    assert history(tmp_path)[['epoch', 'step']].values.tolist() == [[1, 3], [2, 6]]
    assert read_summary(tmp_path)['epochs'] == 2


def test_testing_leaves_what_is_told_of_the_training(tmp_path):
    fit(tmp_path, *NO_BETTER)
    before, curves = read_summary(tmp_path), (tmp_path / 'curves.png').read_bytes()
    assert (before['tested_after_epoch'], before['epochs']) == (1, 2)
    (tmp_path / 'curves.png').write_bytes(curves + b'.')
    train.main(['test', '--run', str(tmp_path)])
    assert read_summary(tmp_path) == before
    assert (tmp_path / 'curves.png').read_bytes() == curves + b'.'


def test_the_csv_of_a_resumed_run_leaves_that_before_it(tmp_path):
    fit(tmp_path, '--logger=csv', '--trainer.max_epochs=1')
    before = (tmp_path / 'csv/metrics.csv').read_bytes()
    (tmp_path / 'config.yaml').unlink()
    resume(tmp_path, '--logger=csv', '--trainer.max_epochs=2')
    assert (tmp_path / 'csv/metrics.csv').read_bytes() == before
    assert (tmp_path / 'csv/version_0/metrics.csv').exists()


def test_a_test_of_weights_that_are_no_numbers_writes_no_results(tmp_path):
    with pytest.raises(ValueError, match='outputs of the model must be numbers'):
        fit(tmp_path, *FULL, '--trainer.max_epochs=1', '--seed_everything=3', '--seeds=2',
            f'{CALLBACK}LoseNumbers')
    assert not list(tmp_path.rglob('summary.json')) and not (tmp_path / 'seeds.csv').exists()


@pytest.mark.parametrize('options, words', [
    ([*FULL, '--model.lr=1e30'], ['the loss is nan in step 2', 'the learning rate']),
    ([*FULL, '--model.lr=1e30', '--seeds=2'], ['the loss is nan in step 2', 'the learning rate']),
    (['--model.lr=1e30'], ['must be finite', 'where the loss was 2.', 'the learning rate 1e+30']),
    ([f'{CALLBACK}LoseGradient', '--trainer.callbacks.steps=4', '--checkpoint_every=1'],
     ['is not finite after step 5', 'the loss was 2.', 'the learning rate 0.00']),
], ids=['loss', 'seeds', 'block models', 'gradient'])
def test_a_training_whose_numbers_are_none_ends(options, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run_or_exit(lambda: fit(tmp_path, '--select_on=val/loss', '--model.warmup=0', *options))
    line = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2 and all(word in line for word in words), line
    assert not list(tmp_path.rglob('summary.json'))
    for path in tmp_path.rglob('*.ckpt'):
        state = torch.load(path, weights_only=True)['state_dict']
        assert all(value.isfinite().all() for value in state.values()), path


def test_seeds_go_on_where_only_a_best_checkpoint_was_written(tmp_path):
    options = '--seeds=1', '--select_on=val/loss', '--trainer.max_epochs=1'
    fit(tmp_path, *options)
    before = untimed(tmp_path / 'seed3')
    (tmp_path / 'seed3/summary.json').unlink()
    for path in (tmp_path / 'seed3/checkpoints').iterdir():
        if path.name != BEST:
            path.unlink()
    fit(tmp_path, *options)
    assert untimed(tmp_path / 'seed3') == before


@pytest.mark.parametrize('form', ['--config={}', '--model={}'])
def test_seeds_of_a_config_that_has_changed_are_refused(form, tmp_path):
    config = tmp_path / 'mine.yml'
    shutil.copy(CONFIG, config)
    if form != '--config={}':
        config.write_text('init_args: {lr: 0.003}\n')
    fit(tmp_path, '--seeds=1', '--trainer.max_epochs=1', form.format(config))
    config.write_text(config.read_text().replace('0.003', '0.1').replace('3.0e-3', '0.1'))
    with pytest.raises(ValueError, match='seed3 must be a new folder'):
        fit(tmp_path, '--seeds=1', '--trainer.max_epochs=1', form.format(config))


def test_two_processes_measure_what_one_does(tmp_path):
    """The parts have sizes that no even number divides."""
    data = {name: str(write_tokens(tmp_path / f'{name}.npz', number, seed=number))
            for name, number in (('path', 40), ('val', 7), ('test', 9))}
    options = [*(f'--data.{name}={path}' for name, path in data.items()),
               '--model.init_args.model.init_args.encoder.init_args.channels=16',
               '--data.batch_size=2', '--trainer.max_epochs=1']
    config = str(CONFIGS / 'tokens.yaml')
    ended = forked(lambda: fit(tmp_path / 'two', *options, '--trainer.devices=2',
                               '--trainer.strategy=ddp', config=config), ranks=2)
    assert [process.returncode for process in ended] == [0, 0], ended
    train.main(['test', '--config', config, '--trainer.default_root_dir', str(tmp_path / 'one'),
                '--trainer.accelerator=cpu', '--trainer.enable_progress_bar=false', *options,
                '--ckpt_path', str(tmp_path / 'two/checkpoints' / LAST)])
    two, one = read_summary(tmp_path / 'two'), read_summary(tmp_path / 'one')
    assert two['processes'] == 2 and two['accuracy'] == pytest.approx(one['accuracy'], rel=1e-6)
    assert two['loss'] == pytest.approx(one['loss'], rel=1e-5)
    assert two['density'] == pytest.approx(one['density'], rel=1e-6)


def test_more_processes_than_examples_are_refused(tmp_path):
    data = [f'--data.{name}={write_tokens(tmp_path / f"{name}.npz", number)}'
            for name, number in (('path', 40), ('val', 1), ('test', 9))]
    config = str(CONFIGS / 'tokens.yaml')
    ended = forked(lambda: fit(tmp_path / 'two', *data, '--trainer.devices=2',
                               '--trainer.strategy=ddp', '--trainer.max_epochs=1', config=config),
                   ranks=2)
    for process in ended:
        assert process.returncode != 0
        assert "'trainer.devices' must be at most the number of examples" in process.stderr


def test_two_processes_divide_drawn_batches_once(tmp_path):
    ended = forked(lambda: fit(tmp_path, *SYNTHETIC, '--trainer.max_epochs=1',
                               '--trainer.devices=2', '--trainer.strategy=ddp'), ranks=2)
    assert [process.returncode for process in ended] == [0, 0], ended
    assert weights(tmp_path)['global_step'] == 3


@pytest.mark.parametrize('name, hook, number', [
    ('run', 'on_test_batch_start', signal.SIGTERM), ('run', 'on_save_checkpoint', signal.SIGHUP),
    ('seeds', 'on_train_batch_end', signal.SIGTERM),
    ('study', 'on_validation_batch_start', signal.SIGINT)])
def test_a_signal_ends_a_training_with_its_status_and_how_to_go_on(name, hook, number, tmp_path):
    options = ['--trainer.max_epochs=2', f'{CALLBACK}Signal', f'--trainer.callbacks.hook={hook}',
               f'--trainer.callbacks.number={int(number)}', '--trainer.callbacks.steps=4',
               '--checkpoint_every=1']
    command, folder = {
        'run': (lambda *options: fit(tmp_path, *options), tmp_path),
        'seeds': (lambda *options: fit(tmp_path, *options, '--seeds=1'), tmp_path / 'seed3'),
        'study': (lambda *options: Study('x', 'smoke', tmp_path).trained(
            'run', '--config', CONFIG, '--trainer.accelerator=cpu', *options),
            tmp_path / 'smoke/runs/run')}[name]
    ended, = forked(lambda: run_or_exit(lambda: command(*options)))
    line = ended.stderr.splitlines()[-1]
    how = 'interrupted' if number == signal.SIGINT else f'ended by {signal.Signals(number).name}'
    last = folder / 'checkpoints' / LAST
    assert ended.returncode == 128 + number and line.startswith(how), ended
    assert line == f'{how}; the same command resumes from {last}' and last.exists()
    assert not list(tmp_path.rglob('summary.json')) and not list(folder.rglob('.*'))
    os.environ[SENT] = ''
    try:
        command(*options)
    finally:
        del os.environ[SENT]
    assert weights(folder)['global_step'] == 6 and (folder / 'summary.json').exists()


def test_a_signal_that_is_ignored_is_ignored(tmp_path):
    def command():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        run_or_exit(lambda: fit(tmp_path, '--trainer.max_epochs=1', f'{CALLBACK}Signal',
                                '--trainer.callbacks.hook=on_train_batch_end',
                                f'--trainer.callbacks.number={int(signal.SIGHUP)}',
                                '--trainer.callbacks.steps=2'))

    ended, = forked(command)
    assert ended.returncode == 0 and (tmp_path / 'summary.json').exists(), ended


def test_a_cycle_of_another_length_is_refused(tmp_path):
    fit(tmp_path, '--model.decay=one-cycle', '--trainer.max_epochs=1')
    before = {path: path.read_bytes() for path in tmp_path.rglob('*.*') if path.is_file()}
    with pytest.raises(ValueError, match="'trainer.max_epochs' and .* 3 steps, .*got 6"):
        resume(tmp_path, '--model.decay=one-cycle', '--trainer.max_epochs=2')
    assert before == {path: path.read_bytes() for path in tmp_path.rglob('*.*') if path.is_file()}


def test_a_finished_run_names_only_a_checkpoint_that_exists(tmp_path, capsys):
    folder, other = tmp_path / 'run', tmp_path / 'other' / 'checkpoints' / LAST
    fit(folder, '--trainer.max_epochs=1')
    shutil.copytree(folder, tmp_path / 'other')
    for is_there in True, False:
        capsys.readouterr()
        fit(folder, '--trainer.max_epochs=1')
        assert ('checkpoints/last.ckpt' in capsys.readouterr().err) == is_there
        with pytest.raises(ValueError, match='must not contain another run') as raised:
            fit(folder, '--trainer.max_epochs=1', '--ckpt_path', str(other))
        assert (str(folder / 'checkpoints') in str(raised.value)) == is_there
        shutil.rmtree(folder / 'checkpoints', ignore_errors=True)
