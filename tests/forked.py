"""Work in processes forked from the test's own: what it has imported they need not import."""

import gc
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numba
import torch

from experiments.benchmarks import measure

OURS = 'analysis', 'experiments', 'graphattn'


@dataclass(frozen=True)
class Ended:
    """End of a process (as in :mod:`subprocess`: minus the signal that killed it), and its
    output."""

    returncode: int
    stdout: str
    stderr: str


def forked(work: Callable[[], None], *, ranks: int = 1, timeout: float = 1_800.) -> list[Ended]:
    """Calls ``work`` in each of ``ranks`` processes, those of one group where there are several,
    which Lightning finds as those that torchrun starts.

    ``timeout`` ends what hangs: it is ten times what the longest work takes on a quiet core, so
    that none fails because the machine is busy.
    """
    with tempfile.TemporaryDirectory() as folder:
        group = {} if ranks == 1 else {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(_free_port()),
                                       'WORLD_SIZE': str(ranks)}
        processes = [get_context('fork').Process(
            target=_work, args=(work, rank, group, Path(folder))) for rank in range(ranks)]
        for process in processes:
            process.start()
        end = time.monotonic() + timeout
        # To join with a timeout would also wait for what the process itself has started.
        while any(process.is_alive() for process in processes) and time.monotonic() < end:
            time.sleep(0.01)
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            process.kill()
            process.join()
        ended = [Ended(process.exitcode, *((Path(folder) / f'{name}{rank}').read_text()
                                           for name in ('stdout', 'stderr')))
                 for rank, process in enumerate(processes)]
    assert not alive, f'still at work after {timeout} s: {ended}'
    return ended


def run_anew(script: str, *, folder: Path | None = None, missing: Collection[str] = (),
             **environment: str) -> Ended:
    """Runs a script that imports this project as if for the first time, from ``folder`` if it is
    given and where ``missing`` modules cannot be imported; but torch and all else is there, which
    a new process would import for five seconds. It has one thread: the library, imported anew,
    does not know that it was forked."""
    def work() -> None:
        os.environ.update(environment)
        numba.config.reload_config()
        for name in list(sys.modules):
            if any(f'{name}.'.startswith(f'{dropped}.') for dropped in (*OURS, *missing)):
                del sys.modules[name]
        sys.modules.update(dict.fromkeys(missing))
        for library in torch.library._keep_alive:  # torch lets no operator be defined twice
            if library.ns == 'graphattn':
                library._destroy()
        if folder is not None:
            sys.path.insert(0, str(folder))
        exec(script, {'__name__': '__main__'})

    process, = forked(work)
    return process


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that ``work`` takes over what its process has."""
    process, = forked(lambda: print(measure.peak_bytes(work)))
    assert process.returncode == 0, process
    return int(process.stdout)


def _work(work: Callable[[], None], rank: int, group: dict[str, str], folder: Path) -> None:
    # What the process before left in cycles is not freed here: a process group among it would wait
    # for ever for threads that do not come along.
    gc.freeze()
    for name, number in (('stdout', 1), ('stderr', 2)):
        file = open(folder / f'{name}{rank}', 'w', buffering=1)
        os.dup2(file.fileno(), number)
        setattr(sys, name, file)
    if group:
        os.environ.update(group, RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)  # threads of the process before, idle or not, do not come along
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    work()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]
