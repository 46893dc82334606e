"""Backend of kernels in Triton for NVIDIA's GPUs."""

from __future__ import annotations

from graphattn._compiler import runs_on
from graphattn.ops.on_graphs import compiled_backend

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ImportError("backend 'triton' needs the package triton: pip install "
                      "'graphattn[gpu]'") from error

import graphattn.ops.attention.triton  # noqa: E402
import graphattn.ops.diffusion.triton  # noqa: E402
import graphattn.ops.weights.triton  # noqa: E402, F401 (registers)
from graphattn.ops.triton.launch import MAX_CHANNELS  # noqa: E402

__all__ = ['BACKEND']

BACKEND = compiled_backend('triton', runs_on, by_key=True, max_channels=MAX_CHANNELS)
