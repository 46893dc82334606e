"""Whole trainings that end in every way at random moments: with the right status, nothing that was
saved lost, and by the same command again the numbers of a training that was left alone."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import load_run, train
from experiments.runs.checkpoints import LAST, PREVIOUS, newest_good, read_checkpoint
from experiments.runs.command import run_or_exit
from experiments.signals import end_early
from tests.forked import forked
from tests.fuzz.budget import TIMES, cases

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'tests/experiments/config.yaml'
SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL]
SECONDS = 2.5  # a training takes about that
OPTIONS = ['fit', '--config', str(CONFIG), '--checkpoint_every=1', '--select_on=val/loss',
           '--trainer.limit_train_batches=3', '--trainer.max_epochs=3']


def command(folder, *options):
    with torch.random.fork_rng():
        run_or_exit(lambda: train.main([*OPTIONS, f'--trainer.default_root_dir={folder}',
                                        *options]))


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')
    process, = forked(lambda: command(folder))
    assert process.returncode == 0, process
    return read_checkpoint(folder / 'checkpoints' / LAST)


def in_process(folder, prepare, number, seconds):
    """Train in a process of its own, which gets a signal; its status and what it said."""
    with (folder.parent / 'said').open('w+') as said:
        def work():
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            end_early()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            sys.stdout = sys.stderr = open(2, 'w', buffering=1)
            torch.set_num_threads(1)
            prepare()
            command(folder)

        process = get_context('fork').Process(target=work)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it listens
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if number is not None:
            process.join(seconds)
            if process.is_alive():
                os.kill(process.pid, number)
        process.join()
        return process.exitcode, (folder.parent / 'said').read_text()


def full_disk(kilobytes):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                      (1024 * kilobytes, resource.RLIM_INFINITY))


def step_of(folder):
    try:
        return read_checkpoint(newest_good(folder / 'checkpoints' / LAST))['global_step']
    except FileNotFoundError:
        return 0


ENDINGS = st.one_of(
    st.tuples(st.sampled_from(SIGNALS), st.floats(0., SECONDS)),
    st.tuples(st.just('full disk'), st.integers(1, 40)))


@cases(4)
@given(endings=st.lists(ENDINGS, min_size=1, max_size=3))
def test_a_training_that_ends_in_any_way_goes_on(whole, tmp_path_factory, endings):
    folder = tmp_path_factory.mktemp('ended') / 'run'
    for how, when in endings:
        before = step_of(folder)
        is_disk = how == 'full disk'
        status, said = in_process(folder, full_disk(when) if is_disk else lambda: None,
                                  None if is_disk else how, when)
        if is_disk:
            assert status in (0, 2), said
        elif how == signal.SIGKILL:
            assert status in (0, -how), said
        else:
            assert status in (0, 128 + how), said
            assert status == 0 or re.search('ended by|interrupted', said), said
        assert 'Traceback' not in said and step_of(folder) >= before, said
        assert status != 0 or (folder / 'summary.json').exists(), said
        print(f'{how!r} {status}')
    assert in_process(folder, lambda: None, None, 0.)[0] == 0
    last = read_checkpoint(folder / 'checkpoints' / LAST)
    assert last['global_step'] == whole['global_step']
    for name, value in whole['state_dict'].items():
        assert torch.equal(last['state_dict'][name], value), name
    load_run(folder)
    assert not list(folder.rglob('.*'))
    shutil.rmtree(folder)


@cases(2)
@given(seconds=st.floats(0., SECONDS), number=st.sampled_from([None, *SIGNALS]))
def test_two_trainings_at_once(whole, tmp_path_factory, seconds, number):
    """The second one is refused, or comes too late; the first one may be killed."""
    folder = tmp_path_factory.mktemp('twice') / 'run'
    first = get_context('fork').Process(target=command, args=(folder,))
    first.start()
    time.sleep(seconds)
    second, = forked(lambda: command(folder))
    if number is not None and first.is_alive():
        os.kill(first.pid, number)
    first.join()
    assert {first.exitcode, second.returncode} & {0} or number is not None, second
    assert second.returncode in (0, 2), second
    assert second.returncode == 0 or 'in use by another run' in second.stderr, second
    third, = forked(lambda: command(folder))
    assert third.returncode == 0, third
    last = read_checkpoint(folder / 'checkpoints' / LAST)
    assert all(torch.equal(last['state_dict'][name], value)
               for name, value in whole['state_dict'].items())


ENCODER = '--model.init_args.model.init_args.encoder.init_args'
VALUES = {
    '--model.init_args.lr': ['0.5', 'x'], '--model.init_args.density_weight': ['0'],
    '--seed_everything': ['5'], '--seeds': ['1', '2'], '--data.batch_size': ['7', '0'],
    '--trainer.max_epochs': ['1', '2', '4'], '--trainer.max_steps': ['1', '4', '12'],
    '--trainer.devices': ['2'], '--trainer.limit_train_batches': ['1', '2'],
    '--trainer.accumulate_grad_batches': ['0', '2'], '--checkpoint_every': ['null', '2'],
    '--select_on': ['null', 'val/accuracy', 'x'], '--logger': ['csv', 'x'],
    '--ckpt_path': ['LAST', 'PREVIOUS', 'x'], '--trainer.callbacks': ['EarlyStopping', 'x'],
    '--unknown': ['1'], f'{ENCODER}.channels': ['2', '4'], f'{ENCODER}.num_layers': ['2'],
    f'{ENCODER}.dropout': ['0.5'], f'{ENCODER}.source': ['graphattn.sources.PatternSource']}
CHANGES = st.lists(st.sampled_from([(name, value) for name, values in VALUES.items()
                                    for value in values]), max_size=2).map(dict)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp('finished') / 'run'
    command(folder)
    return folder


@cases(8)
@given(changes=CHANGES, resumes=st.booleans(), damage=st.sampled_from(
    [None, None, 'summary.json', 'config.yaml', 'checkpoints/last.ckpt', 'metrics.csv']))
def test_what_is_refused_leaves_the_run(finished, tmp_path_factory, changes, resumes, damage):
    folder = tmp_path_factory.mktemp('changed') / 'run'
    shutil.copytree(finished, folder)
    names = {name: str(folder / 'checkpoints' / path)
             for name, path in (('LAST', LAST), ('PREVIOUS', PREVIOUS))}
    if resumes:
        changes = {'--ckpt_path': 'LAST', **changes}
    if damage is not None:
        (folder / damage).write_bytes(b'{')
    before = {path: path.read_bytes() for path in folder.rglob('*.*') if path.is_file()}
    try:
        command(folder, *(f'{name}={names.get(value, value)}' for name, value in changes.items()))
    except SystemExit as stop:
        assert stop.code == 2
        assert before == {path: path.read_bytes() for path in folder.rglob('*.*')
                          if path.is_file() and 'csv' not in path.parts[-2]}
    else:
        assert (folder / 'summary.json').exists()
        if damage is None:
            load_run(folder)
    shutil.rmtree(folder)


@pytest.mark.skipif(TIMES not in os.environ, reason='for python -m tests.fuzz')
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize('which', ['first', 'second'])
def test_of_two_processes_none_outlives_the_other(which, number, tmp_path):
    folder, draw = tmp_path / 'run', random.Random(str((which, number)))
    options = [sys.executable, '-m', 'experiments.train', *OPTIONS, '--trainer.devices=2',
               '--trainer.strategy=ddp', f'--trainer.default_root_dir={folder}',
               '--trainer.max_epochs=500']
    first = subprocess.Popen(options, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (folder / 'checkpoints' / LAST).exists():
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.1)
    time.sleep(draw.random())
    second = int(Path(f'/proc/{first.pid}/task/{first.pid}/children').read_text().split()[0])
    start = time.monotonic()
    os.kill(first.pid if which == 'first' else second, number)
    while is_at_work(second) or which == 'second' and first.poll() is None:
        assert time.monotonic() - start < 60, 'one is left'
        time.sleep(0.05)
    took = time.monotonic() - start
    if number == signal.SIGSTOP:
        first.kill()
    said = first.communicate()[1]
    print(f'{which} {number!r}: {took:.1f} s, status {first.returncode}: {said}')
    if number == signal.SIGTERM:
        assert first.returncode == 143
    if which == 'second' or number == signal.SIGTERM:
        assert 'the same command resumes from' in said and 'Traceback' not in said
    assert step_of(folder) > 0


def is_at_work(process):
    try:
        return Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError:
        return False
