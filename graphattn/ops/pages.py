"""Memory of results that kernels read here and there."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

HUGE = 1 << 22  # bytes


def new_rows(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor of a CPU whose rows begin at lines of the cache.

    From 4 MiB on numpy asks Linux for pages of 2 MiB, and torch does not: with pages of 4 KiB the
    first touch of 70 MB takes four times as long, and rows far apart find no place in the table of
    pages. Numpy begins 16 bytes after a line, where each vector of a row would lie on two.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE:
        return torch.empty(shape, dtype=dtype)
    space = np.empty(num_bytes + 64, np.uint8)
    skip = -space.ctypes.data % 64
    storage = torch.from_numpy(space[skip:]).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # no view, so that it may be changed
