"""Backend of kernels in Triton for NVIDIA's GPUs."""

from __future__ import annotations

from functools import partial

from graphattn._compiler import runs_on
from graphattn.ops import on_graphs
from graphattn.ops.backend import Backend

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

BACKEND = Backend('triton', runs_on, supports_gqa=True, max_channels=MAX_CHANNELS,
                  attention=partial(on_graphs.attend, by_key=True),
                  attention_with_features=partial(on_graphs.attend, by_key=True),
                  attention_part=on_graphs.attend_part,
                  attention_part_grads=partial(on_graphs.grads_of_part, by_key=True),
                  attention_weights=on_graphs.weigh, weighted_sum=on_graphs.sum_by_weights,
                  attention_diffusion=on_graphs.diffuse,
                  diffused_attention=on_graphs.attend_and_diffuse,
                  edge_dot=partial(on_graphs.dot_on_edges, by_key=True),
                  edge_dot_grads=partial(on_graphs.grads_of_dot, by_key=True))
