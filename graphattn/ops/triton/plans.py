"""Plans: what kernels need to know about a graph beside its edges, computed once for each graph.

The device computes plans, and the host must not wait for it. A plan therefore begins with bounds of
its numbers. The numbers themselves arrive on the host later, and save the launches that they show
to be unnecessary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ['TIMES_BEFORE_COPY', 'Arriving', 'once_per_graph']

Plan = TypeVar('Plan')
_OF_GRAPHS = WeakTensorKeyDictionary()  # by the tensor with the columns of a graph
TIMES_BEFORE_COPY = 8


class _Plans(NamedTuple):
    """The plans of one order of the edges of a graph."""

    indptr: Tensor
    versions: tuple[int, int]
    by_name: dict[Hashable, object]


def once_per_graph(name: Hashable, indptr: Tensor, column: Tensor,
                   make: Callable[[], Plan]) -> Plan:
    """Return the plan ``name`` of a graph, which ``make`` returns if it is not known yet.

    A graph is known by its tensors, as long as they live and are not changed in place.
    """
    plans = _OF_GRAPHS.get(column)
    versions = _version(indptr), _version(column)
    if plans is None or plans.indptr is not indptr or plans.versions != versions:
        plans = _Plans(indptr, versions, {})
        if not _is_capturing(indptr.device):  # captured kernels compute when they are replayed
            _OF_GRAPHS[column] = plans
    plan = plans.by_name.get(name)
    if plan is None:
        plan = plans.by_name[name] = make()
    return plan


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_capturing(device: torch.device) -> bool:
    return (device.type == 'cuda' and torch.cuda.is_available()
            and torch.cuda.is_current_stream_capturing())


class Arriving:
    """A number of the device that the host learns without waiting.

    It is copied only once it was asked for a few times, because a graph that serves a single step
    would not get the time of the copy back.

    Args:
        number (Tensor): One number, on the device.
    """

    def __init__(self, number: Tensor):
        self._there, self._times = number, 0
        self._number = int(number) if number.device.type == 'cpu' else None

    def now(self) -> int | None:
        """Return the number, or None as long as it has not arrived."""
        # CUDA refuses copies and queries while it captures a graph.
        if (self._number is None and torch.cuda.is_available()
                and not _is_capturing(self._there.device)):
            self._times += 1
            if self._times == TIMES_BEFORE_COPY:
                self._here = torch.empty_like(self._there, device='cpu', pin_memory=True)
                self._here.copy_(self._there, non_blocking=True)
                self._event = torch.cuda.Event()
                self._event.record()
            elif self._times > TIMES_BEFORE_COPY and self._event.query():
                self._number = int(self._here)
        return self._number
