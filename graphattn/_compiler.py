"""Availability of compilers, for modules that also work without numba or Triton."""

from __future__ import annotations

from functools import cache

import torch

OLDEST = 8, 0  # oldest compute capability: it supports bfloat16, and tests compile for it


class CompilerMissing(ImportError):
    """Raised if numba or Triton, or a function of the system for compiled loops, is missing."""


def runs_on(device: torch.device) -> bool:
    """Return whether Triton's kernels can run on ``device``."""
    return device.type == 'cuda' and _is_recent(device)


@cache
def _is_recent(device: torch.device) -> bool:
    if not torch.cuda.is_available():  # tensors of such a device are fake
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= OLDEST
