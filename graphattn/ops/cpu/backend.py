"""Backend of loops for CPUs, compiled by numba."""

from __future__ import annotations

import torch

import graphattn.ops.attention.cpu
import graphattn.ops.diffusion.cpu
import graphattn.ops.weights.cpu
import graphattn.ops.weights.cpu_dots  # noqa: F401 (registers)
from graphattn.ops.on_graphs import compiled_backend


def is_available(device: torch.device) -> bool:
    return device.type == 'cpu'


__all__ = ['BACKEND']

# With by_key=False, gradients of keys are accumulated in the order by query.
BACKEND = compiled_backend('numba', is_available, by_key=False)
