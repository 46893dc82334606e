"""Attention along the edges of a graph, and dense attention under a soft mask."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graphattn._checks import check_bool
from graphattn._tensors import without_autocast
from graphattn.functional.checks import check_arguments, check_sink, check_terms, scale_of
from graphattn.functional.choose import choose
from graphattn.functional.drive import drive, weigh
from graphattn.functional.folding import repeat_heads
from graphattn.functional.recursion import check_hops
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops import LogitTerms, ProjectedFeatures


def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None = None,
    edge_gate: Tensor | None = None,
    hops: int | float = 1,
    teleport: float | Sequence[float] | Tensor = 0.,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    dropout_p: float = 0.,
    return_attention_weights: bool = False,
    backend: str = 'auto',
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Return scaled dot-product attention along the edges of a graph.

    .. math::
        \mathrm{out}_i = \sum_{j \in \mathcal{N}(i)} \alpha_{ij} \, \mathrm{value}_j, \qquad
        \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)} \left( \mathrm{gate}_{ij}
        \, \frac{\langle \mathrm{query}_i, \mathrm{key}_j \rangle}{\sqrt{C}}
        + \mathrm{bias}_{ij} \right)

    This is masked attention (SBM-Transformer, Eq. 3 and 4) in time and memory linear in the number
    of edges. A query without keys has output 0 and gradient 0. A NaN in a key or value reaches only
    the queries that attend to this key, except with ``backend='sdpa'``, which computes all pairs.

    Args:
        query (Tensor): floating ``[num_queries, heads, channels]``.
        key (Tensor): ``[num_keys, num_kv_heads, channels]``, of the same dtype and device.
            ``num_kv_heads`` divides ``heads``; ``heads / num_kv_heads`` consecutive heads of
            queries share one head of keys and values (Ainslie et al., "GQA", 2023).
        value (Tensor): ``[num_keys, num_kv_heads, value_channels]``.
        graph (BipartiteGraph): The edges, shared by all heads. If each head has its own graph, fold
            heads into nodes first (:func:`graphattn.layers.fold_heads`).
        edge_bias (Tensor, optional): Added to logits, ``[num_edges]`` or ``[num_edges, heads]`` in
            the order of ``graph.edge_index``. If edges are in another order,
            :meth:`BipartiteGraph.from_edge_index` returns the permutation that sorts them. A query
            whose keys all have the bias ``-inf`` attends to no key.
        edge_gate (Tensor, optional): Multiplies the scaled dot product; shapes are those of
            ``edge_bias``.
        hops (int or float): Number of diffusion hops with the attention weights, see
            :func:`attention_diffusion`. One hop without teleport is plain attention.
        teleport (float, sequence of float or Tensor): As in :func:`attention_diffusion`.
        scale (float, optional): Replaces :math:`1/\sqrt{C}`.
        softcap (float, optional): A bound :math:`c` on the size of the scaled and gated dot
            products :math:`x`, which become :math:`c \tanh(x / c)` before the bias is added (as in
            Gemma 2).
        sink (Tensor, optional): ``[heads]``, one more logit in the softmax of each query, without a
            value (as in gpt-oss): the weights of a query then sum to less than 1. A sink of
            ``-inf`` is none.
        dropout_p (float): Probability in [0, 1) of zeroing a weight; the others are divided by
            ``1 - dropout_p``. Applied whenever positive, so modules pass 0 in eval mode.
        return_attention_weights (bool): Also return the attention weights.
        backend (str): ``'auto'``, or the name of one of :data:`graphattn.ops.BACKENDS`, which is
            used or raises an error. ``'auto'`` chooses ``'sdpa'`` for complete graphs without a
            bias, gate, softcap or sink and, on a CPU, without dropout. There are three exceptions:
            weights or several hops are requested; many short segments differ in shape; or, on a CPU
            with numba, the edges are in memory and sequences have more than 32,768 pairs on
            average. In all other cases, it chooses ``'numba'`` on a CPU; ``'triton'`` on an
            NVIDIA GPU of compute capability 8.0 or later with heads of at most 256 channels; and
            ``'gather'`` otherwise. It also chooses ``'gather'`` inside :mod:`torch.func` and for
            forward-mode derivatives, because no faster backend supports them. For second
            derivatives, pass ``'gather'``.

    Returns:
        Tensor ``[num_queries, heads, value_channels]`` of the dtype of ``query``; half precision
        accumulates in float32. With ``return_attention_weights``, a pair of this tensor and the
        weights ``[num_edges, heads]`` in the order of ``graph.edge_index``.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not match, or the backend is unknown.
        ImportError: The requested backend needs a package that is not installed.
        NotImplementedError: The requested backend lacks the requested derivative.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph, patterns
        >>> from graphattn.functional import edge_attention
        >>> query, key, value = torch.randn(3, 1000, 4, 32)
        >>> graph = (patterns.SlidingWindow(8) | patterns.GlobalTokens(1)).build(1000)
        >>> edge_attention(query, key, value, graph).shape
        torch.Size([1000, 4, 32])

        A bias on edges in another order:

        >>> edge_index = torch.tensor([[5, 0, 3], [1, 1, 0]])  # key over query
        >>> graph, perm = BipartiteGraph.from_edge_index(edge_index, 1000, return_perm=True)
        >>> bias = torch.tensor([.5, 0., -1.])  # of the edges as they are given
        >>> edge_attention(query, key, value, graph, edge_bias=bias[perm]).shape
        torch.Size([1000, 4, 32])
    """
    check_bool(return_attention_weights=return_attention_weights)
    check_hops(hops)
    terms = LogitTerms(edge_bias, edge_gate, scale, dropout_p, softcap, sink)
    check_terms(terms)
    out, weight = drive(query, key, value, graph, terms, hops, teleport, backend=backend,
                        needs_weights=return_attention_weights)
    return (out, weight) if return_attention_weights else out


def attention_weights(
    query: Tensor,
    key: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None = None,
    edge_gate: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    dropout_p: float = 0.,
    backend: str = 'auto',
) -> Tensor:
    r"""Return the attention weights of :func:`edge_attention` without the output.

    .. math::
        \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)} \left( \mathrm{gate}_{ij}
        \, \frac{\langle \mathrm{query}_i, \mathrm{key}_j \rangle}{\sqrt{C}}
        + \mathrm{bias}_{ij} \right)

    Args:
        query (Tensor): floating ``[num_queries, heads, channels]``.
        key (Tensor): ``[num_keys, num_kv_heads, channels]``, as in :func:`edge_attention`.
        graph (BipartiteGraph): The edges, shared by all heads.
        edge_bias (Tensor, optional): ``[num_edges]`` or ``[num_edges, heads]``, added to logits.
        edge_gate (Tensor, optional): Multiplies the scaled dot product; shapes are those of
            ``edge_bias``.
        scale (float, optional): Replaces :math:`1/\sqrt{C}`.
        softcap (float, optional): A bound :math:`c` on the size of the scaled and gated dot
            products :math:`x`, which become :math:`c \tanh(x / c)` before the bias is added (as in
            Gemma 2).
        sink (Tensor, optional): ``[heads]``, one more logit in the softmax of each query, without a
            value (as in gpt-oss): the weights of a query then sum to less than 1. A sink of
            ``-inf`` is none.
        dropout_p (float): Probability in [0, 1) of zeroing a weight; the others are divided by
            ``1 - dropout_p``. Applied whenever positive.
        backend (str): As in :func:`edge_attention`, except ``'sdpa'``, which does not
            return weights.

    Returns:
        Tensor ``[num_edges, heads]`` in the order of ``graph.edge_index``, float32 for half
        precision.

    Raises:
        TypeError, ValueError, ImportError: As :func:`edge_attention`.

    Source: Diffuser, Eq. S.5.
    """
    edge_bias, edge_gate = check_arguments(query, key, key, graph, edge_bias, edge_gate)
    sink = None if sink is None else check_sink(sink, query).unsqueeze(0)
    scale = scale_of(query) if scale is None else scale
    terms = LogitTerms(edge_bias, edge_gate, scale, dropout_p, softcap, sink)
    check_terms(terms)
    kernel = choose(backend, query, key, key, graph, terms, needs_weights=True)
    key = repeat_heads(key, query.size(1))
    with without_autocast(graph.device):
        return weigh(kernel, query, key, graph, terms)


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
    terms = LogitTerms(scale=scale, dropout_p=dropout_p,
                       features=ProjectedFeatures(edge_attr, projection))
    check_terms(terms)
    out, _ = drive(query, key, value, graph, terms, hops=1, teleport=0., backend=backend)
    return out


def pair_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ptr: Tensor,
    mask: PairMask,
    *,
    hops: int | float = 1,
    teleport: float | Sequence[float] | Tensor = 0.,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    dropout_p: float = 0.,
    multiply: bool = False,
) -> Tensor:
    r"""Return dense attention within each sequence, under a soft mask.

    .. math::
        \mathrm{out}_i = \sum_j \alpha_{ij} \, \mathrm{value}_j, \qquad
        \alpha_{ij} = \operatorname*{softmax}_j \left( \frac{\langle \mathrm{query}_i,
        \mathrm{key}_j \rangle}{\sqrt{C}} + \mathrm{bias}_{ij} \right)

    The bias of the mask is :math:`-c (1 - M_{ij})` (SparseBERT, Eq. 5 and 6). With ``multiply``,
    the softmax has no bias, and each weight is multiplied by :math:`M_{ij}` after it, so the
    weights of a query sum to less than 1 (SparseBERT, Eq. 4). Sequences of the same length are
    computed together, without padding. All pairs of a sequence are computed, so a NaN in a key or
    value reaches every query of its sequence. A hard mask is a graph; use :func:`edge_attention`
    for it.

    Args:
        query (Tensor): floating ``[num_tokens, heads, channels]``.
        key (Tensor): ``[num_tokens, num_kv_heads, channels]``, of the same dtype and device.
            ``num_kv_heads`` divides ``heads``, as in :func:`edge_attention`.
        value (Tensor): ``[num_tokens, num_kv_heads, value_channels]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        mask (PairMask): The masks of the heads, shared by all sequences.
        hops, teleport, scale, softcap, sink, dropout_p: As in :func:`edge_attention`.
        multiply (bool): Whether the mask multiplies the weights instead of adding to the logits.

    Returns:
        Tensor ``[num_tokens, heads, value_channels]`` of the dtype of ``query``.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not match, or a sequence is longer than the mask.

    Example:
        >>> import torch
        >>> from graphattn.functional import pair_attention
        >>> from graphattn.graphs.pair_layout import FreeLayout
        >>> from graphattn.graphs.pair_mask import PairMask
        >>> query, key, value = torch.randn(3, 7, 2, 4)
        >>> mask = PairMask(torch.rand(2, 16), FreeLayout(4))
        >>> pair_attention(query, key, value, torch.tensor([0, 3, 7]), mask).shape
        torch.Size([7, 2, 4])
    """
    check_hops(hops)
    check_bool(multiply=multiply)
    terms = LogitTerms(scale=scale, dropout_p=dropout_p, softcap=softcap, sink=sink)
    check_terms(terms)
    out, _ = drive(query, key, value, MaskedPairs(mask, ptr, multiply), terms, hops, teleport)
    return out
