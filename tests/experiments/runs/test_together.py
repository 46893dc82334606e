"""Processes of a run of which one dies or is stopped, all others with it."""

import os
import signal
import sys
import time
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment

from experiments.runs import together
from experiments.runs.together import EndTogether
from tests.forked import forked

pytestmark = pytest.mark.slow

SLEEP = [sys.executable, '-S', '-c', 'import time; time.sleep(60)']


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(together, 'PERIOD', 0.02)


def wait_for(befall, children=2):
    """Wait for children as a process does, one of which something befalls."""
    processes = [Popen(SLEEP) for _ in range(children)]
    callback = EndTogether(lambda what: print(what, file=sys.stderr))
    callback.setup(SimpleNamespace(strategy=SimpleNamespace(
        launcher=SimpleNamespace(procs=processes)), local_rank=0), None, 'fit')
    print(*(process.pid for process in processes), flush=True)
    befall(processes[-1])
    time.sleep(60)


def is_alive(process):
    try:
        # Nobody asks a zombie how it died.
        return Path(f'/proc/{process}/stat').read_text().split()[2] != 'Z'
    except OSError:
        return False


@pytest.mark.parametrize('number, status', [
    (signal.SIGKILL, 137), (signal.SIGTERM, 143), (signal.SIGSTOP, 147)], ids=['9', '15', '19'])
def test_a_process_that_waits_for_its_children_ends_with_them(number, status):
    ended, = forked(lambda: wait_for(lambda child: child.send_signal(number)))
    assert ended.returncode == status
    assert ended.stderr.startswith('process 2 ') and ended.stderr.count('\n') == 1
    for process in ended.stdout.split():
        while is_alive(process):
            time.sleep(0.01)


def test_a_process_that_goes_on_soon_is_waited_for(monkeypatch):
    monkeypatch.setattr(together, 'PATIENCE', 10**9)

    def stop_for_a_while(child):
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        child.send_signal(signal.SIGCONT)
        child.kill()

    ended, = forked(lambda: wait_for(stop_for_a_while))
    assert ended.returncode == 137 and 'status 137' in ended.stderr


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_a_child_ends_with_the_first_process(number):
    inlet, outlet = os.pipe()

    def first():
        if os.fork() == 0:
            strategy = SimpleNamespace(launcher=None, cluster_environment=LightningEnvironment())
            EndTogether(print).setup(SimpleNamespace(strategy=strategy, local_rank=1), None, 'fit')
            time.sleep(60)
        os.close(outlet)
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    process = os.fork()
    if process == 0:
        first()
    os.close(outlet)
    try:
        assert os.read(inlet, 1) == b''  # once the child, which alone could still write, has ended
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(inlet)
