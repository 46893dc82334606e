"""A process of several that is killed, stops or falls behind, and what the others say."""

import os
import re
import signal
import subprocess
import time
from datetime import timedelta

import torch.distributed as dist

from graphattn.distributed import sequence_parallel
from graphattn.placement import messages
from graphattn.sources import PatternSource
from tests.distributed import overlapping
from tests.distributed.cases import DIFFUSER, PTR, encoder, inputs
from tests.forked import forked

SECONDS = 1.5  # the timeout of a collective
GRACE = .7  # after it, to hear from the others
def leave(how: str) -> None:
    if how == 'killed':
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == 'stopped':  # and is killed once the others have ended
        subprocess.Popen(['sh', '-c', f'sleep {1.2 * (SECONDS + GRACE)}; kill -KILL {os.getpid()}'])
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(1.2 * (SECONDS + GRACE))


def step(how: str | None, where: str, parallel) -> None:
    """Train for a step, in which this process leaves unless ``how`` is None."""
    def leave_here(at: str) -> None:
        if how is not None and where == at:
            leave(how)

    own, (tokens, target) = parallel.share(PTR), inputs(parallel.module)
    hook = parallel.module.layers[1].register_forward_pre_hook(lambda *_: leave_here('layer'))
    leave_here('forward')
    loss = (parallel(tokens[own], PTR) * target[own]).sum()
    leave_here('backward')
    loss.backward()
    hook.remove()


def errors(world: int, who: int, how: str, where: str, hops: int = 2) -> list[str]:
    """Return what the other processes raise, after how many seconds."""
    def run() -> None:
        messages.GRACE = GRACE
        dist.init_process_group('gloo')
        overlapping.always()  # computes while messages are sent, if there is one hop
        diffusion = dict(hops=hops, teleport=.1 * (hops > 1))
        parallel = sequence_parallel(encoder(PatternSource(DIFFUSER), **diffusion),
                                     timeout=timedelta(seconds=SECONDS))
        step(None, where, parallel)
        start = time.perf_counter()
        try:
            for _ in range(2):
                step(how if dist.get_rank() == who else None, where, parallel)
        except RuntimeError as error:
            print(f'{time.perf_counter() - start:.1f} s: {error}', flush=True)
        os._exit(0)  # the group cannot be left in good order

    ended = forked(run, ranks=world)
    return [done.stdout for rank, done in enumerate(ended) if rank != who]


def is_named(error: str, who: int) -> bool:
    """Return whether an error names the process in one line, within the timeout and what it takes
    to call the roll."""
    found = re.fullmatch(r'([\d.]+) s: (.*) of \d did not arrive at an exchange .*\n', error)
    names = [f'process {who}', 'a process, probably 0, which keeps the store of the group,'][
        :1 + (who == 0)]
    return bool(found) and found[2] in names and float(found[1]) < 3 * SECONDS
