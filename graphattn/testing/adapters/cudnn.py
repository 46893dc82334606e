"""cuDNN's attention, written for nvidia-cudnn-frontend 1.32.0: along all keys, causally and along a
window by ``cudnn.sdpa_torch``, and with a bias and a sink by the graph API, without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters import flash_attn
from graphattn.testing.adapters.adapter import Adapter
from graphattn.testing.supports import DTYPES, Supports


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              scale: float | None = None, window_size: tuple[int, int] = (-1, -1)) -> Tensor:
    import cudnn
    before, after = window_size
    out, _ = cudnn.sdpa_torch(
        query, key, value, scale=scale, causal_bottom_right=window_size != (-1, -1),
        window_left=before + 1 if before >= 0 else -1,  # counts the diagonal
        window_right=after, return_lse=True)  # the backward pass needs it
    return out


def graphs(window_size: tuple[int, int]) -> Mapping[str, BipartiteGraph]:
    return flash_attn.graphs(window_size)


def with_bias(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
              edge_bias: Tensor | None = None, scale: float | None = None,
              sink: Tensor | None = None) -> Tensor:
    """Return the attention of cuDNN with a bias and a sink. Pairs outside ``mask`` get the bias
    ``-inf``."""
    import cudnn
    kind = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}
    graph = cudnn.pygraph(io_data_type=kind[query.dtype],
                          intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT)
    bias = query.new_zeros(1, query.size(1), *mask.shape) if edge_bias is None else edge_bias
    inputs = {'q': query, 'k': key, 'v': value, 'bias': bias.masked_fill(~mask, -torch.inf)}
    if sink is not None:
        inputs['sink_token'] = sink.float().view(1, -1, 1, 1)
    named = {name: graph.tensor_like(x) for name, x in inputs.items()}
    scale = query.size(-1) ** -0.5 if scale is None else scale
    of_out, _ = graph.sdpa(name='sdpa', **named, generate_stats=False, attn_scale=scale)
    out = query.new_empty(*query.shape[:3], value.size(3))
    of_out.set_output(True).set_dim(out.shape).set_stride(out.stride())
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), device=query.device, dtype=torch.uint8)
    graph.execute({of_out: out, **{named[name]: x for name, x in inputs.items()}}, workspace,
                  handle=cudnn.create_handle())
    return out


SUPPORTS = Supports(dtypes=DTYPES[2:], channels=(64, 128), scale=True, grouped_queries=True,
                    rectangular=True, strides=True)
FORWARD = Supports(gradients=False, dtypes=DTYPES[2:], channels=(64, 128), bias=True, sink=True,
                   scale=True, grouped_queries=True, rectangular=True, strides=True)
ADAPTERS = {
    **{name.replace('flash_attn', 'cudnn'): Adapter(
        partial(attention, window_size=size), 'cudnn', SUPPORTS, graphs=partial(graphs, size),
        device='cuda') for name, size in flash_attn.KINDS.items()},
    'cudnn_bias': Adapter(with_bias, 'cudnn', FORWARD, device='cuda')}
