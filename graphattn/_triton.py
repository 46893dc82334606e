"""Availability of Triton's kernels on a device, for modules that work without it."""

from __future__ import annotations

from functools import cache

import torch

OLDEST = 8, 0  # compute capability: bfloat16, and that kernels are compiled for in tests


def runs_on(device: torch.device) -> bool:
    """Return whether a device is a GPU that kernels are made for."""
    return device.type == 'cuda' and _is_recent(device)


@cache
def _is_recent(device: torch.device) -> bool:
    if not torch.cuda.is_available():  # its tensors have no numbers, and nothing runs
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= OLDEST
