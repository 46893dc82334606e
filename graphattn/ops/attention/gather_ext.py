"""Attention by torch-scatter's segment softmax and torch-sparse's sparse product."""

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.attention import gather
from graphattn.ops.backend import Backend, LogitTerms, has_values
from graphattn.ops.edge_math import edge_logit, highest_logit, with_first_derivative

try:
    import torch_sparse
    from torch_scatter import scatter_softmax
except ImportError as error:
    raise ImportError("backend 'gather_ext' needs torch-scatter and torch-sparse: pip install "
                      "--no-build-isolation torch-scatter torch-sparse") from error

not_compiled = torch.compiler.disable(reason="torch-scatter and torch-sparse are not compiled")


@not_compiled
def attention_weights(query: Tensor, key: Tensor, graph: BipartiteGraph,
                      terms: LogitTerms) -> Tensor:
    logit = edge_logit(gather.edge_dot(query, key, graph), terms)
    query, sizes = graph.query, {'dim': 0, 'dim_size': graph.num_queries}
    if terms.sink is not None:  # one more edge of each query
        logit = torch.cat([logit, terms.sink.expand(graph.num_queries, logit.size(1))])
        query = torch.cat([query, torch.arange(graph.num_queries, device=query.device)])
    # The maximum is subtracted first, because torch-scatter's softmax returns NaN for very large
    # logits, and if all logits of a query are -inf.
    highest = highest_logit(logit, query, graph.num_queries)[query]
    is_nothing = highest == -torch.inf
    weight = scatter_softmax((logit - highest).masked_fill(is_nothing, 0.), query, **sizes)
    weight = weight.masked_fill(is_nothing, 0.)[:graph.num_edges]
    return with_first_derivative(weight, 'gather_ext')


@not_compiled
def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    if graph.num_edges == 0 or value.numel() == 0:  # torch-sparse would divide by 0 and crash
        return gather.weighted_sum(weight, value, graph)
    out = [torch_sparse.matmul(graph.to_sparse_tensor(weight_h), value_h)
           for weight_h, value_h in zip(weight.unbind(1), value.unbind(1))]
    return with_first_derivative(torch.stack(out, dim=1), 'gather_ext')


BACKEND = Backend('gather_ext', has_values, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=gather.edge_dot)
