"""Plans: facts about a graph that kernels need beside its edges, computed once on the GPU.

The host must not wait for the GPU. So it first uses upper bounds of the numbers in a plan, and when
these have arrived some calls later, it omits launches that are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ['TIMES_BEFORE_COPY', 'Arriving', 'once_per_graph', 'plans_of']

Plan = TypeVar('Plan')
_OF_GRAPHS = WeakTensorKeyDictionary()  # the plans of each graph, by the tensor of its columns
TIMES_BEFORE_COPY = 8  # number of requests after which a number is copied to the host


class _Plans(NamedTuple):  # for one order of the edges, valid until they change
    indptr: Tensor
    versions: tuple[int, int]  # of indptr and of the columns, which in-place changes increment
    by_name: dict[Hashable, object]


def once_per_graph(name: Hashable, indptr: Tensor, column: Tensor,
                   make: Callable[[], Plan]) -> Plan:
    """Return the plan that ``make`` computes once for each graph and ``name``."""
    # name: with all settings that the plan depends on
    plans = plans_of(indptr, column)
    plan = plans.get(name)
    if plan is None:
        plan = make()
        # While a CUDA graph is captured, kernels do not run yet, so the plan has no values.
        if not _is_capturing(indptr.device):
            plans[name] = plan
            _OF_GRAPHS[column] = _Plans(indptr, (_version(indptr), _version(column)), plans)
    return plan


def plans_of(indptr: Tensor, column: Tensor) -> dict[Hashable, object]:
    """Return the plans of a graph that have been made so far, by name."""
    plans = _OF_GRAPHS.get(column)
    versions = _version(indptr), _version(column)
    is_current = plans is not None and plans.indptr is indptr and plans.versions == versions
    return plans.by_name if is_current else {}


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_capturing(device: torch.device) -> bool:
    return (device.type == 'cuda' and torch.cuda.is_available()
            and torch.cuda.is_current_stream_capturing())


class Arriving:
    """An integer on the GPU that is copied to the host without waiting for the GPU."""

    def __init__(self, number: Tensor):
        self._there, self._times = number, 0
        self._number = int(number) if number.device.type == 'cpu' else None

    def now(self) -> int | None:
        """Return the integer, or None if it has not arrived on the host yet."""
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
