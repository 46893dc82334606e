"""Attention whose edges have features of their own, beside those of their keys."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._checks import check_floating
from graphattn._tensors import without_autocast
from graphattn.functional.checks import check_arguments, check_numbers
from graphattn.functional.choose import accumulated, choose_for_features
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, EdgeFeatures, LogitTerms


def edge_feature_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    edge_attr: Tensor,
    projection: Tensor,
    *,
    scale: float | None = None,
    dropout_p: float = 0.,
    backend: str = 'auto',
) -> Tensor:
    r"""Attention along edges whose features are added to both key and value.

    .. math::
        \mathrm{out}_i = \sum_{j \in \mathcal{N}(i)} \alpha_{ij} \left( \mathrm{value}_j
        + W e_{ij} \right), \qquad \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)}
        \frac{\langle \mathrm{query}_i, \mathrm{key}_j + W e_{ij} \rangle}{\sqrt{C}}

    The projections :math:`W e_{ij}`, edges x channels numbers, are never formed: :math:`\langle
    \mathrm{query}_i, W e_{ij} \rangle = \langle W^\top \mathrm{query}_i, e_{ij} \rangle`, and
    :math:`\sum_j \alpha_{ij} W e_{ij} = W \sum_j \alpha_{ij} e_{ij}`.

    Args:
        query (Tensor): floating ``[num_queries, heads, channels]``.
        key (Tensor): ``[num_keys, key_heads, channels]``, of the same dtype and device.
            ``key_heads`` divides ``heads``, as in :func:`edge_attention`.
        value (Tensor): As ``key``.
        graph (BipartiteGraph): The edges, which all heads share.
        edge_attr (Tensor): :math:`e`, ``[num_edges, size]``, in the order of ``graph.edge_index``.
        projection (Tensor): :math:`W` of each head, ``[heads, channels, size]``. Both are of
            query's dtype.
        scale (float, optional): Instead of :math:`1/\sqrt{C}`.
        dropout_p (float): Probability in [0, 1) with which a weight is zeroed, the others being
            divided by ``1 - dropout_p``. Applied whenever positive.
        backend (str): As in :func:`edge_attention`. ``'numba'`` takes features in the one pass
            that it makes; others form weights, and the features of one head at a time.

    Returns:
        Tensor ``[num_queries, heads, channels]`` of the dtype of ``query``.

    Raises:
        TypeError, ValueError, ImportError, NotImplementedError: As :func:`edge_attention`.

    Source: Shi et al., "Masked Label Prediction" (2021), Eq. 3 and 4.

    Example:
        >>> import torch
        >>> from graphattn.functional import edge_feature_attention
        >>> from graphattn.patterns import SlidingWindow
        >>> graph = SlidingWindow(1).build(10)
        >>> query, key, value = torch.randn(3, 10, 2, 8)
        >>> edge_attr, projection = torch.randn(graph.num_edges, 3), torch.randn(2, 8, 3)
        >>> edge_feature_attention(query, key, value, graph, edge_attr, projection).shape
        torch.Size([10, 2, 8])
    """
    check_arguments(query, key, value, graph, None, None)
    _check_features(query, value, graph, edge_attr, projection)
    terms = LogitTerms(scale=check_numbers(scale, dropout_p, query), dropout_p=dropout_p)
    kernel = choose_for_features(backend, graph.device, query.size(-1))
    if not kernel.shares_keys:
        key, value = (repeat_heads(x, query.size(1)) for x in (key, value))
    attend = kernel.attention_with_features or partial(_by_weights, kernel)
    with without_autocast(graph.device):
        features = EdgeFeatures(torch.einsum('qhc,hcs->qhs', query, projection), edge_attr)
        out, sums = attend(query, key, value, graph, features, terms)
        return out + torch.einsum('qhs,hcs->qhc', sums, projection)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """``[nodes, key_heads, channels]`` with each head as often as there are heads of queries."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


def _by_weights(kernel: Backend, query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                features: EdgeFeatures, terms: LogitTerms) -> tuple[Tensor, Tensor]:
    dtype, edge_query = query.dtype, graph.query
    query, key, value, feature_query, attr = map(accumulated, (query, key, value, *features))
    dot = [(of_head.index_select(0, edge_query) * attr).sum(-1) for of_head in
           feature_query.unbind(1)]
    bias = torch.stack(dot, dim=1) * terms.scale
    weight = kernel.attention_weights(query, key, graph, terms._replace(bias=bias))
    weight = F.dropout(weight, terms.dropout_p) if terms.dropout_p > 0 else weight
    nothing = attr.new_zeros(graph.num_queries, attr.size(1))
    sums = [nothing.index_add(0, edge_query, of_head.unsqueeze(1) * attr)
            for of_head in weight.unbind(1)]
    return (kernel.weighted_sum(weight, value, graph).to(dtype),
            torch.stack(sums, dim=1).to(dtype))


def _check_features(query: Tensor, value: Tensor, graph: BipartiteGraph, edge_attr: Tensor,
                    projection: Tensor) -> None:
    for name, tensor in (('edge_attr', edge_attr), ('projection', projection)):
        check_floating(name, tensor)
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, where the graph is (got "
                             f"{tensor.device})")
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must be of query's dtype {query.dtype} (got "
                            f"{tensor.dtype})")
    if value.size(2) != query.size(2):
        raise ValueError(f"'value' must have query's {query.size(2)} channels, for features are "
                         f"added to both keys and values (got {value.size(2)})")
    if edge_attr.dim() != 2 or edge_attr.size(0) != graph.num_edges:
        raise ValueError(f"'edge_attr' must be [num_edges, size] with {graph.num_edges} edges (got "
                         f"shape {tuple(edge_attr.shape)})")
    if projection.shape != (*query.shape[1:], edge_attr.size(1)):
        raise ValueError(f"'projection' must be [heads, channels, size] = "
                         f"{[*query.shape[1:], edge_attr.size(1)]} (got shape "
                         f"{tuple(projection.shape)})")
