"""Kernels for NVIDIA's GPUs in Triton: a program takes one head of some rows of the graph."""

from __future__ import annotations

from functools import partial

from graphattn._triton import runs_on
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

__all__ = ['BACKEND']

BACKEND = Backend('triton', runs_on, shares_keys=True, most_channels=MOST_CHANNELS,
                  attention=partial(on_graphs.attend, by_key=True),
                  attention_weights=on_graphs.weigh, weighted_sum=on_graphs.sum_by_weights,
                  attention_diffusion=on_graphs.diffuse,
                  diffused_attention=on_graphs.attend_and_diffuse,
                  edge_dot=partial(on_graphs.dot_on_edges, by_key=True),
                  edge_dot_grads=partial(on_graphs.grads_of_dot, by_key=True))
