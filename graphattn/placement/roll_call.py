"""Errors for failed communication between processes, which name the processes that do not
respond."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import torch
import torch.distributed as dist

GRACE = 3.  # seconds
LACKING = re.compile('does not support|No backend type')  # in torch's messages


@contextmanager
def naming_absent(group: dist.ProcessGroup) -> Iterator[None]:
    """Explain the failure of a collective by the processes that do not respond, or by its
    backend."""
    try:
        yield
    except RuntimeError as error:
        if LACKING.search(str(error)):
            raise RuntimeError(f"'group' must have a backend that supports all_to_all on the "
                               f"device of the module, such as 'gloo' on CPUs or 'nccl' on GPUs "
                               f"(got {dist.get_backend(group)!r})") from error
        # Each process in which the collective fails marks itself in the store of the group and
        # waits GRACE seconds for the marks of the others; who has none does not respond.
        if absent := _absent(group):
            raise RuntimeError(f"{absent} of {dist.get_world_size()} did not arrive at an exchange "
                               f"in time, because a process has died, has stopped or is slow; "
                               f"start all processes again from the last checkpoint") from error
        raise


@torch.compiler.disable(reason='the store is not a tensor')
def _absent(group: dist.ProcessGroup) -> str:
    size, present = dist.get_world_size(group), set()
    # A thread makes the call, because the process that hosts the store may never answer.
    caller = Thread(target=_call, args=(group, present), daemon=True)
    caller.start()
    caller.join(GRACE + 1)
    absent = [str(dist.get_global_rank(group, rank)) for rank in sorted({*range(size)} - present)]
    if not present:
        return 'a process, probably 0, which keeps the store of the group,'
    return f'process {", ".join(absent)}' if absent else ''


def _call(group: dist.ProcessGroup, present: set[int]) -> None:
    mark, size = 'graphattn failed {}'.format, dist.get_world_size(group)
    try:
        store = group.get_group_store()
        store.set(mark(dist.get_rank(group)), '')
        end = time.monotonic() + GRACE
        while len(present) < size and time.monotonic() < end:
            present |= {rank for rank in range(size) if store.check([mark(rank)])}
            time.sleep(.01)
    except RuntimeError:  # the process that hosts the store has died or finished
        return
