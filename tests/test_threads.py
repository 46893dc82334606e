"""Compiled work in threads: torch's own, or others where torch has none."""

import os
import threading
import time

import numpy as np
import pytest
import torch

from graphattn import _threads
from graphattn._threads import run_calls
from graphattn.ops.cpu.launch import in_threads
from graphattn.ops.cpu.schedule import next_item
from tests.forked import forked


@pytest.fixture(params=['openmp', 'one granted', 'pool'])
def threads(request, monkeypatch):
    """The ways in which work can meet threads."""
    class OneThread:
        @staticmethod
        def GOMP_parallel(region, *_):  # noqa: N802
            region()

    if request.param == 'openmp' and not torch.backends.openmp.is_available():
        pytest.skip('torch was built without OpenMP')
    ways = {'openmp': _threads._openmp, 'one granted': lambda process: OneThread,
            'pool': lambda process: None}
    monkeypatch.setattr(_threads, '_openmp', ways[request.param])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize('number', [1, 2, 7])
def test_every_call_runs_once(threads, number):
    done = []
    run_calls([(lambda x, y: done.append((x, y)), i, -i) for i in range(number)])
    assert sorted(done) == [(i, -i) for i in range(number)]


def test_calls_run_side_by_side(threads):
    if threads == 'one granted':
        pytest.skip('one after the other is what this way is about')
    together = threading.Barrier(2, timeout=600)
    run_calls([(together.wait,), (together.wait,)])


@pytest.mark.parametrize('num_threads', [1, 2])
def test_as_many_at_a_time_as_torch_has_threads(threads, num_threads):
    torch.set_num_threads(num_threads)
    lock, running, most = threading.Lock(), [], []

    def work():
        with lock:
            running.append(None)
            most.append(len(running))
        time.sleep(0.01)
        with lock:
            running.pop()

    run_calls([(work,)] * 6)
    assert len(most) == 6 and max(most) <= num_threads


@pytest.mark.parametrize('num_threads', [1, 2, 3])
def test_compiled_work_is_done_by_any_number_of_threads(threads, num_threads):
    if threads == 'one granted':
        pytest.skip('compiled code calls a function of C')
    _threads._start.cache_clear()
    items, done = np.zeros((100, 1), np.int64), np.zeros(100, np.int64)
    _count(_threads.start_of_threads(), num_threads, items, np.zeros((1, 2), np.int64), done)
    _threads._start.cache_clear()
    assert (done == 1).all()


def test_memory_that_a_thread_does_not_find_is_an_error(threads):
    with pytest.raises(MemoryError, match='ran out of memory'):
        _find_no_memory(_threads.start_of_threads(), 2, 1 << 60)


@in_threads
def _count(items, progress, done):
    item = next_item(progress, 0)
    while item < len(items):
        done[item] += 1
        item = next_item(progress, 0)


@in_threads
def _find_no_memory(size):
    room = np.empty(size)
    room[0] = size


def test_an_error_reaches_the_caller(threads):
    def fail():
        raise ZeroDivisionError('here')

    with pytest.raises(ZeroDivisionError, match='here'):
        run_calls([(fail,), (time.sleep, 0)])
    done = []
    run_calls([(done.append, 1), (done.append, 2)])  # and the next call finds all in order
    assert sorted(done) == [1, 2]


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='does not fork')
def test_a_forked_process_has_threads_of_its_own(threads):
    def work():
        torch.set_num_threads(2)
        done = []
        run_calls([(done.append, number) for number in range(5)])
        assert sorted(done) == [0, 1, 2, 3, 4]

    work()  # the parent's threads are there
    process, = forked(work)
    assert process.returncode == 0, process
