"""Messages between processes that share a sequence. A message contains rows of tensors or gradients
of such rows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor

from graphattn.placement.roll_call import naming_absent


class Message:
    """Exchange of rows with other processes that runs while this process computes."""

    # Rows are in the order of the receiving processes, and all processes send at the same time.
    def __init__(self, rows: Tensor, send_sizes: list[int], receive_sizes: list[int],
                 group: dist.ProcessGroup):
        self._group = group
        with naming_absent(group):
            self._rows = all_to_all_single(rows.contiguous(), receive_sizes, send_sizes, group)

    def wait(self) -> Tensor:
        """Return the received rows in the order of the sending processes."""
        with naming_absent(self._group):
            return wait_tensor(self._rows)


def exchanged(rows: Tensor, send_sizes: list[int], receive_sizes: list[int],
              group: dist.ProcessGroup) -> Tensor:
    """Send rows to other processes, return the received rows, and send their gradients back."""
    # Rows are in the order of the receiving processes, and all processes must call this.
    return _Sent.apply(rows, send_sizes, receive_sizes, group)


class _Sent(torch.autograd.Function):
    """Autograd function of :func:`exchanged`."""

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
