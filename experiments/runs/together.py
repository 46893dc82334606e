"""The processes of a run end together: none waits for ever for one that died or was stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import lightning as L
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import Callback

from experiments.runs.command import listen_again, status_of

PERIOD = 1.  # seconds between two looks at the other processes
PATIENCE = 10  # looks for which a process may be stopped
STOPPED = 128 + signal.SIGSTOP
Look = Callable[[], tuple[str, int] | None]  # what has befallen another process, and a status


class EndTogether(Callback):
    """Ends all processes of a run that Lightning has started when one of them ends or is stopped.

    A process that waits for another one in a collective operation sees no signal, so a thread looks
    after the others: within ``PERIOD`` seconds it notices that one has died, and within
    ``PERIOD * PATIENCE`` that one was stopped.

    Args:
        tell (Callable): Called in the first process with what has happened, before it ends.
    """

    def __init__(self, tell: Callable[[str], None]):
        self.tell = tell
        self.children: list[Popen] = []
        self.is_child = self.is_watching = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        strategy = trainer.strategy
        self.children = getattr(strategy.launcher, 'procs', [])
        self.is_child = trainer.local_rank > 0 and isinstance(
            getattr(strategy, 'cluster_environment', None), LightningEnvironment)
        if (self.children or self.is_child) and not self.is_watching:
            self.is_watching = True
            for thread in threading.enumerate():
                if thread.name == 'child-process-observer':  # Lightning's, which kills in silence
                    thread._child_processes = []
            look = self._look_at_children if self.children else _look_at(os.getppid())
            threading.Thread(target=_watch, args=(look, self._end), daemon=True).start()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # At SIGTERM Lightning waits for all other processes, which do not know of it.
        listen_again()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        listen_again()

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        listen_again()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule,
                     exception: BaseException) -> None:
        if self.is_child and isinstance(exception, KeyboardInterrupt):
            os._exit(status_of(exception))  # at once: the first process waits, and tells
        if isinstance(exception, RuntimeError) and any(name in str(exception)
                                                       for name in ('gloo', 'NCCL')):
            time.sleep(PERIOD * PATIENCE)  # a lost connection; meanwhile the dead process is found
        self._kill()

    def _look_at_children(self) -> tuple[str, int] | None:
        """Return what has befallen a child, and a status to end with."""
        for rank, child in enumerate(self.children, start=1):
            if code := child.poll():
                status = 128 - code if code < 0 else code
                return f'process {rank} ended with status {status}', status
            if _is_stopped(child.pid):
                return f'process {rank} was stopped', STOPPED
        return None

    def _end(self, what: str, status: int) -> None:
        self._kill()
        if self.children:
            self.tell(what)
        sys.stderr.flush()
        os._exit(status)  # the main thread may wait for ever

    def _kill(self) -> None:
        for child in self.children:
            child.send_signal(signal.SIGKILL)


def _watch(look: Look, end: Callable[[str, int], None]) -> None:
    """Look again and again, until there is a reason to end."""
    patience = PATIENCE
    while True:
        time.sleep(PERIOD)
        found = look()
        # Looks are counted, not seconds: Ctrl-Z stops all processes, the one that looks as well.
        patience = patience - 1 if found is not None and found[1] == STOPPED else PATIENCE
        if found is not None and (found[1] != STOPPED or patience == 0):
            end(*found)


def _look_at(parent: int) -> Look:
    def look() -> tuple[str, int] | None:
        if os.getppid() != parent:
            return 'the first process ended', 128 + signal.SIGKILL
        return ('the first process was stopped', STOPPED) if _is_stopped(parent) else None

    return look


def _is_stopped(process: int) -> bool:
    """Return whether a process got SIGSTOP, where the system tells."""
    try:
        state = Path(f'/proc/{process}/stat').read_text('utf-8', 'replace').rpartition(')')[2]
    except OSError:
        return False
    return state.split()[0] in ('T', 't')
