"""Memory for large tensors that kernels access in random order."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

HUGE = 1 << 22  # bytes


def new_rows(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised CPU tensor, in huge pages and aligned to cache lines if it is
    large."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE:
        return torch.empty(shape, dtype=dtype)
    # numpy requests pages of 2 MiB for arrays of 4 MiB or more, torch does not. With pages of 4
    # KiB, the first access to 70 MB takes four times as long, and accesses to distant rows miss the
    # TLB. Arrays of numpy begin 16 bytes after a cache line.
    space = np.empty(num_bytes + 64, np.uint8)
    skip = -space.ctypes.data % 64
    storage = torch.from_numpy(space[skip:]).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # not a view, so that it is writable
