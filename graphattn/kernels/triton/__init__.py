"""Kernels for NVIDIA's GPUs in Triton: a program takes one head of some rows of the graph."""

from __future__ import annotations

from functools import partial

import torch

from graphattn.kernels.backend import Backend
from graphattn.kernels.operators import on_graphs
from graphattn.kernels.triton import attention  # noqa: F401 (registers)


def is_available(device: torch.device) -> bool:
    return device.type == 'cuda'


__all__ = ['BACKEND']

BACKEND = Backend('triton', is_available, shares_keys=True,
                  attention=partial(on_graphs.attend, by_key=True))
