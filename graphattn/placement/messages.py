"""Messages between processes that share a sequence. A message contains rows of tensors or gradients
of such rows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor


class Message:
    """Exchange of rows with other processes that runs while this process computes."""

    # Rows are in the order of the receiving processes, and all processes send at the same time.
    def __init__(self, rows: Tensor, send_sizes: list[int], receive_sizes: list[int],
                 group: dist.ProcessGroup):
        self._group = group
        with naming_absent(group):
            self._rows = all_to_all_single(rows.contiguous(), receive_sizes, send_sizes, group)

    def wait(self) -> Tensor:
        with naming_absent(self._group):
            return wait_tensor(self._rows)


def exchanged(rows: Tensor, send_sizes: list[int], receive_sizes: list[int],
              group: dist.ProcessGroup) -> Tensor:
    """Send rows to other processes, return the received rows, and send their gradients back."""
    # Rows are in the order of the receiving processes, and all processes must call this.
    return _Sent.apply(rows, send_sizes, receive_sizes, group)


class _Sent(torch.autograd.Function):
    # If a process does not respond in the backward pass, the error names this process, unlike the
    # error of torch's own function.

    @staticmethod
    def forward(rows: Tensor, send_sizes: list[int], receive_sizes: list[int],
                group: dist.ProcessGroup) -> Tensor:
        return Message(rows, send_sizes, receive_sizes, group).wait()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        _, *ctx.way = inputs

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        send_sizes, receive_sizes, group = ctx.way
        return _Sent.apply(grad, receive_sizes, send_sizes, group), None, None, None


def gathered(x: Tensor, sizes: list[int], group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all processes in their order; the backward pass sums the gradients."""
    rows = x.repeat(len(sizes), *[1] * (x.dim() - 1))
    return exchanged(rows, [x.size(0)] * len(sizes), sizes, group)


def all_to_all(rows: Tensor, send_sizes: list[int] | None, receive_sizes: list[int] | None,
                group: dist.ProcessGroup) -> Tensor:
    """Send rows to other processes, and return those received in the order of the senders."""
    # All processes must call this. The result has no gradient. Sizes None: equal shares.
    num_rows = rows.size(0) if receive_sizes is None else sum(receive_sizes)
    arrived = rows.new_empty(num_rows, *rows.shape[1:])
    with naming_absent(group):
        dist.all_to_all_single(arrived, rows, receive_sizes, send_sizes, group)
    return arrived


def all_gather(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensors ``mine`` of all processes, equal in shape, stacked and without
    gradient."""
    size = dist.get_world_size(group)
    return all_to_all(mine.expand(size, *mine.shape).contiguous(), None, None, group)


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
