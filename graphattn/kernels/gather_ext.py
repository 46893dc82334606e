"""The gather kernel on torch-scatter's segment softmax and torch-sparse's sparse product."""

import torch
from torch import Tensor

from graphattn.graph import BipartiteGraph
from graphattn.kernels import gather
from graphattn.kernels.gather import edge_dot, edge_logit

try:
    import torch_sparse
    from torch_scatter import scatter_softmax
except ImportError as error:
    raise ImportError("backend 'gather_ext' needs torch-scatter and torch-sparse: pip install "
                      "--no-build-isolation torch-scatter torch-sparse") from error


def attention_weights(
    query: Tensor,
    key: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    scale: float,
) -> Tensor:
    logit = edge_logit(edge_dot(query, key, graph), edge_bias, edge_gate, scale)
    return scatter_softmax(logit, graph.query, dim=0, dim_size=graph.num_queries)


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    if graph.num_edges == 0 or value.numel() == 0:  # torch-sparse would divide by zero and die
        return gather.weighted_sum(weight, value, graph)
    out = [torch_sparse.matmul(graph.to_sparse_tensor(weight_h), value_h)
           for weight_h, value_h in zip(weight.unbind(1), value.unbind(1))]
    return torch.stack(out, dim=1)
