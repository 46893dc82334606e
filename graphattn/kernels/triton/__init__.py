"""Kernels for NVIDIA's GPUs in Triton: a program takes one head of some rows of the graph."""

from __future__ import annotations

from functools import cache, partial

import torch

from graphattn.kernels.backend import Backend
from graphattn.kernels.operators import on_graphs

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ImportError("backend 'triton' needs triton: pip install 'graphattn[gpu]'") from error

from graphattn.kernels.triton import (  # noqa: E402, F401 (registers)
    attention,
    diffusion,
    edge_dot,
    weighted_sum,
    weights,
)
from graphattn.kernels.triton.launch import MOST_CHANNELS  # noqa: E402

OLDEST = 8, 0  # compute capability: bfloat16, and that kernels are compiled for in tests


def is_available(device: torch.device) -> bool:
    return device.type == 'cuda' and _is_recent(device)


@cache
def _is_recent(device: torch.device) -> bool:
    if not torch.cuda.is_available():  # its tensors have no numbers, and nothing runs
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= OLDEST


__all__ = ['BACKEND']

BACKEND = Backend('triton', is_available, shares_keys=True, most_channels=MOST_CHANNELS,
                  attention=partial(on_graphs.attend, by_key=True),
                  attention_weights=on_graphs.weigh, weighted_sum=on_graphs.sum_by_weights,
                  attention_diffusion=on_graphs.diffuse,
                  diffused_attention=on_graphs.attend_and_diffuse,
                  edge_dot=partial(on_graphs.dot_on_edges, by_key=True),
                  edge_dot_grads=partial(on_graphs.grads_of_dot, by_key=True))
