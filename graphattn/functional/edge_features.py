"""Attention with edge features."""

from __future__ import annotations

from torch import Tensor

from graphattn.functional.checks import check_scale_and_dropout
from graphattn.functional.drive import drive
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import LogitTerms, ProjectedFeatures


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
    r"""Return attention along edges whose features are added to both key and value.

    .. math::
        \mathrm{out}_i = \sum_{j \in \mathcal{N}(i)} \alpha_{ij} \left( \mathrm{value}_j
        + W e_{ij} \right), \qquad \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)}
        \frac{\langle \mathrm{query}_i, \mathrm{key}_j + W e_{ij} \rangle}{\sqrt{C}}

    The projected features :math:`W e_{ij}` would be a tensor of edges x heads x channels. They are
    never materialised, because :math:`\langle \mathrm{query}_i, W e_{ij} \rangle = \langle W^\top
    \mathrm{query}_i, e_{ij} \rangle`, and :math:`\sum_j \alpha_{ij} W e_{ij} = W \sum_j \alpha_{ij}
    e_{ij}`.

    Args:
        query (Tensor): floating ``[num_queries, heads, channels]``.
        key (Tensor): ``[num_keys, num_kv_heads, channels]``, of the same dtype and device.
            ``num_kv_heads`` divides ``heads``, as in :func:`edge_attention`.
        value (Tensor): ``[num_keys, num_kv_heads, channels]``, of the same dtype and device.
        graph (BipartiteGraph): The edges, shared by all heads.
        edge_attr (Tensor): Features :math:`e` of the edges, ``[num_edges, size]``, of the dtype of
            ``query``, in the order of ``graph.edge_index``.
        projection (Tensor): Projection :math:`W` of each head, ``[heads, channels, size]``, of the
            dtype of ``query``.
        scale (float, optional): Replaces :math:`1/\sqrt{C}`.
        dropout_p (float): Probability in [0, 1) of zeroing a weight; the others are divided by
            ``1 - dropout_p``. Applied whenever positive.
        backend (str): As in :func:`edge_attention`. ``'numba'`` and ``'triton'`` compute features
            in the same pass as attention, ``'triton'`` up to 256 features. Other backends
            materialise weights, and process features head by head.

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
    check_scale_and_dropout(scale, dropout_p)
    terms = LogitTerms(scale=scale, dropout_p=dropout_p,
                       features=ProjectedFeatures(edge_attr, projection))
    out, _ = drive(query, key, value, graph, terms, hops=1, teleport=0., backend=backend)
    return out
