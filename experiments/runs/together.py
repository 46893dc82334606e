"""The common end of all processes of a run, so that none waits forever for a dead or stopped
one."""

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

from experiments.signals import listen_again, status_of

PERIOD = 1.  # seconds between checks of the other processes
PATIENCE = 10  # the number of checks for which a process may stay stopped
STOPPED = 128 + signal.SIGSTOP
# returns the failure of another process and an exit status, or None
Look = Callable[[], tuple[str, int] | None]


class EndTogether(Callback):
    """A callback that ends all processes of a run when one of them ends or is stopped.

    Lightning starts the processes. A process that blocks in a collective operation handles no
    signals, so a thread monitors the other processes. It detects a dead process within ``PERIOD``
    seconds, and a stopped process within ``PERIOD * PATIENCE`` seconds.
    """

    def __init__(self, tell: Callable[[str], None]):
        self.tell = tell  # called with the failure in the first process, before it ends
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
                if thread.name == 'child-process-observer':  # Lightning's, which kills silently
                    thread._child_processes = []
            look = self._look_at_children if self.children else _look_at(os.getppid())
            threading.Thread(target=_watch, args=(look, self._end), daemon=True).start()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # At SIGTERM, Lightning waits for all other processes, which have not received the signal.
        listen_again()

    on_validation_start = on_test_start = on_train_start

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule,
                     exception: BaseException) -> None:
        if self.is_child and isinstance(exception, KeyboardInterrupt):
            # end at once, because the first process waits and reports
            os._exit(status_of(exception))
        if isinstance(exception, RuntimeError) and any(name in str(exception)
                                                       for name in ('gloo', 'NCCL')):
            # the connection is lost; in this time, the thread finds the dead process
            time.sleep(PERIOD * PATIENCE)
        self._kill()

    def _look_at_children(self) -> tuple[str, int] | None:
        """Return a description of the first child process that failed and an exit status, or
        ``None`` if all are running."""
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
        os._exit(status)  # sys.exit would not end a blocked main thread

    def _kill(self) -> None:
        for child in self.children:
            child.send_signal(signal.SIGKILL)


def _watch(look: Look, end: Callable[[str, int], None]) -> None:
    """Call ``look`` until it returns the failure of another process, after some time if that is
    stopped, and call ``end`` with it."""
    patience = PATIENCE
    while True:
        time.sleep(PERIOD)
        found = look()
        # Checks are counted instead of seconds, because Ctrl-Z stops all processes, this one
        # included.
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
    """Return whether a process was stopped by SIGSTOP, as far as the system reports it."""
    try:
        state = Path(f'/proc/{process}/stat').read_text('utf-8', 'replace').rpartition(')')[2]
    except OSError:
        return False
    return state.split()[0] in ('T', 't')
