"""Backend of loops for CPUs, compiled by numba."""

from __future__ import annotations

from functools import partial

import torch

import graphattn.ops.attention.cpu
import graphattn.ops.diffusion.cpu
import graphattn.ops.weights.cpu
import graphattn.ops.weights.cpu_dots  # noqa: F401 (registers)
from graphattn.ops import on_graphs
from graphattn.ops.backend import Backend


def is_available(device: torch.device) -> bool:
    return device.type == 'cpu'


__all__ = ['BACKEND']

# With by_key=False, gradients of keys are accumulated in the order by query.
BACKEND = Backend('numba', is_available, supports_gqa=True,
                  attention=partial(on_graphs.attend, by_key=False),
                  attention_with_features=partial(on_graphs.attend, by_key=False),
                  attention_part=on_graphs.attend_part,
                  attention_part_grads=partial(on_graphs.grads_of_part, by_key=False),
                  attention_weights=on_graphs.weigh, weighted_sum=on_graphs.sum_by_weights,
                  attention_diffusion=on_graphs.diffuse,
                  diffused_attention=on_graphs.attend_and_diffuse,
                  edge_dot=partial(on_graphs.dot_on_edges, by_key=False),
                  edge_dot_grads=partial(on_graphs.grads_of_dot, by_key=False))
