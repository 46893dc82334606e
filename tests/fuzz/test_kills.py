"""Trainings that are killed, or run out of room, again and again: nothing that was saved is lost,
and each comes to the numbers of one that was left alone."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.runs import checkpoints
from experiments.runs.checkpoints import LAST, TRAINING_STATE, newest_good, read_checkpoint
from tests.fuzz.budget import cases

STEPS = 5
FACTOR = torch.full((30_000,), 1.01)
SIZE = 122_000  # bytes of a checkpoint, about


def train(folder, report):
    """A training in miniature: each step needs the one before, and is saved and reported."""
    step, weight = resumed(folder)
    plugin = checkpoints.DurableCheckpoints()
    while step < STEPS:
        step, weight = step + 1, weight * FACTOR + step
        plugin.save_checkpoint({**dict.fromkeys(TRAINING_STATE, {}), 'epoch': 0,
                                'global_step': step,
                                'state_dict': {'weight': weight}}, folder / LAST)
        os.write(report, bytes([step]))


def resumed(folder):
    if not any(folder.glob('*.ckpt')):
        return 0, torch.ones_like(FACTOR)
    checkpoint = read_checkpoint(newest_good(folder / LAST))
    return checkpoint['global_step'], checkpoint['state_dict']['weight']


def in_process(folder, prepare=lambda: None, seconds=None):
    """Trains in a process of its own; its exit status, negative if killed, and the last step that
    it reported."""
    inlet, outlet = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            prepare()
            train(folder, outlet)
            status = 0
        except OSError:
            status = 2
        finally:
            sys.settrace(None)
            os._exit(status)
    os.close(outlet)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    with open(inlet, 'rb') as steps:
        saved = max(steps.read(), default=0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), saved


def before_line(number):
    """Has a process kill itself before a line that it runs of checkpoints.py, counted from 0, and
    so between any two calls of the system."""
    def trace(frame, event, _):
        nonlocal number
        if frame.f_code.co_filename != checkpoints.__file__:
            return None
        number -= event == 'line'
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return lambda: sys.settrace(trace)


def at_byte(number):
    """Has the system kill a process that writes a file beyond so many bytes."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))

    return limit


def assert_whole(folder):
    """Assert that a whole run is left, with nothing beside it."""
    assert in_process(folder)[0] == 0
    step, weight = resumed(folder)
    expected = torch.ones_like(FACTOR)
    for number in range(STEPS):
        expected = expected * FACTOR + number
    assert step == STEPS and torch.equal(weight, expected)
    assert {path.name for path in folder.iterdir()} <= {LAST, checkpoints.PREVIOUS}


@pytest.fixture(params=['here', '/dev/shm'])
def folder(request, tmp_path, monkeypatch):
    """A folder on the file system of temporary files, or on another one."""
    if request.param != 'here':
        if not os.access(request.param, os.W_OK):
            pytest.skip(f'there is no {request.param}')
        monkeypatch.setenv('TMPDIR', request.param)
        monkeypatch.setattr(tempfile, 'tempdir', request.param)
    return tmp_path / 'checkpoints'


@pytest.fixture
def small_disk(tmp_path):
    """A disk, and what sets its size."""
    disk = tmp_path / 'disk'
    disk.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', disk],
                      capture_output=True).returncode:
        pytest.skip('only root may mount a small disk')
    yield disk, lambda size: subprocess.run(
        ['mount', '-o', f'remount,size={size}', disk], check=True)
    subprocess.run(['umount', '--lazy', disk], check=True)


def assert_kills_lose_nothing(folder, kills):
    shutil.rmtree(folder, ignore_errors=True)
    for kill in kills:
        before, _ = resumed(folder)
        status, saved = in_process(folder, **kill)
        assert status in (0, -signal.SIGKILL, -signal.SIGXFSZ)
        assert resumed(folder)[0] >= max(before, saved)
    assert_whole(folder)


@cases(16)
@given(st.lists(st.one_of(st.builds(before_line, st.integers(0, 60 * STEPS)),
                          st.builds(at_byte, st.integers(0, SIZE))), min_size=1, max_size=4))
def test_kills_while_a_checkpoint_is_written(folder, prepares):
    assert_kills_lose_nothing(folder, [{'prepare': prepare} for prepare in prepares])


@cases(3)
@given(st.lists(st.floats(0., 0.15), min_size=1, max_size=4))
def test_kills_at_any_moment(folder, moments):
    assert_kills_lose_nothing(folder, [{'seconds': moment} for moment in moments])


@cases(3)
@given(st.lists(st.integers(0, 4 * SIZE // 1024), min_size=1, max_size=3))
def test_full_disks(small_disk, kilobytes):
    disk, set_size = small_disk
    folder = disk / 'checkpoints'
    shutil.rmtree(folder, ignore_errors=True)
    for size in kilobytes:
        before, _ = resumed(folder)
        used = sum(path.stat().st_size for path in folder.glob('*'))
        set_size(f'{max(size, used // 1024 + 8)}k')
        status, saved = in_process(folder)
        assert status in (0, 2) and resumed(folder)[0] >= max(before, saved)
        assert not [path for path in folder.glob('.*')]
    set_size('1m')
    assert_whole(folder)


def test_a_write_that_fails_in_its_middle(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, resource.RLIM_INFINITY))

    in_process(tmp_path, before_line(120))
    before, _ = resumed(tmp_path)
    assert in_process(tmp_path, limit) == (2, 0)
    assert resumed(tmp_path)[0] == before > 0
    assert not list(tmp_path.glob('.*'))
    assert_whole(tmp_path)
