"""Attention over edges as functions: arguments are validated here, once, and a kernel is chosen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn import kernels
from graphattn._checks import check_floating, check_ptr
from graphattn.diffusion import diffuse, heat_teleport, is_one_hop, spread_teleport
from graphattn.graph import BipartiteGraph
from graphattn.pair_mask import PairMask

if TYPE_CHECKING:
    from graphattn.samplers import FactorModel

# By the number of keys, the share of the pairs above which masked dense attention takes less time
# than the fused kernel for a training step. On two cores (Zen 4), 4 heads of 32, the fused kernel
# and the dense one took 2.8 and 2.9 ms at 55 % and 3.4 and 3.1 ms at 80 % of 256 x 256 pairs, 28
# and 38 ms at 85 % and 32 and 39 ms at 95 % of 1,024 x 1,024, 688 and 945 ms at 95 % of 4,096 x
# 4,096: there only complete graphs, which need no mask, are faster dense. The forward pass alone is
# so at every size. To measure another machine: python -m experiments.benchmarks.crossover.
DENSE_ABOVE = {256: 0.6, 1024: 1.}


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
    dropout_p: float = 0.,
    return_attention_weights: bool = False,
    backend: str = 'auto',
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Scaled dot-product attention along the edges of a graph.

    .. math::
        \mathrm{out}_i = \sum_{j \in \mathcal{N}(i)} \alpha_{ij} \, \mathrm{value}_j, \qquad
        \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)} \left( \mathrm{gate}_{ij}
        \, \frac{\langle \mathrm{query}_i, \mathrm{key}_j \rangle}{\sqrt{C}}
        + \mathrm{bias}_{ij} \right)

    This is masked attention (SBM-Transformer, Eq. 3 and 4) in O(edges). A query that attends to
    no key gives 0, with gradient 0; NaN in a key or value reaches the queries that attend to it
    and no others.

    Args:
        query (Tensor): floating ``[num_queries, heads, channels]``.
        key (Tensor): ``[num_keys, heads, channels]``, of the same dtype and device.
        value (Tensor): ``[num_keys, heads, value_channels]``.
        graph (BipartiteGraph): The edges, which all heads share. Heads that own a graph each are
            folded into nodes first (:func:`graphattn.layers.fold_heads`).
        edge_bias (Tensor, optional): ``[num_edges]`` or ``[num_edges, heads]``, added to logits.
        edge_gate (Tensor, optional): As ``edge_bias``; multiplies the scaled dot product.
        hops (int or float): How many hops values travel by these weights, see
            :func:`attention_diffusion`; one without a teleport is attention.
        teleport (float, sequence of float or Tensor): As in :func:`attention_diffusion`.
        scale (float, optional): Instead of :math:`1/\sqrt{C}`.
        dropout_p (float): Probability in [0, 1) with which a weight is zeroed, the others being
            divided by ``1 - dropout_p``. Applied whenever positive: modules pass 0 in eval mode.
        return_attention_weights (bool): Also return the weights that were used.
        backend (str): One of :data:`graphattn.kernels.BACKENDS`, which runs or raises, or
            ``'auto'``: ``'sdpa'`` for complete graphs and, in training, for those that hold more
            of the pairs than :data:`DENSE_ABOVE` says (without a gate); else ``'numba'`` on a
            CPU, ``'csr'`` where torch has CSR products, and ``'gather'``.

    Returns:
        Tensor ``[num_queries, heads, value_channels]`` of the dtype of ``query``; half precision
        accumulates in float32. With ``return_attention_weights`` also the weights
        ``[num_edges, heads]`` in the order of ``graph.edge_index``.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not fit, or the backend is unknown.
        ImportError: The backend asked for needs a package that is not installed.

    Example:
        >>> import torch
        >>> from graphattn import patterns
        >>> from graphattn.functional import edge_attention
        >>> query, key, value = torch.randn(3, 1000, 4, 32)
        >>> graph = (patterns.SlidingWindow(8) | patterns.GlobalTokens(1)).build(1000)
        >>> edge_attention(query, key, value, graph).shape
        torch.Size([1000, 4, 32])
    """
    edge_bias, edge_gate = check_arguments(query, key, value, graph, edge_bias, edge_gate)
    scale = _check_numbers(scale, dropout_p, query)
    if not is_one_hop(hops, teleport):
        return _diffused_attention(query, key, value, graph, edge_bias, edge_gate, hops, teleport,
                                   scale, dropout_p, return_attention_weights, backend)
    if backend == 'auto':
        backend = _choose_backend(query, key, value, graph, edge_gate, return_attention_weights)
    if return_attention_weights and backend in kernels.FUSED:
        raise ValueError(f"'return_attention_weights' needs a backend that forms them (got "
                         f"{backend!r}); 'auto' takes one")
    kernel, dtype = kernels.load(backend), query.dtype
    terms = {'edge_bias': edge_bias, 'edge_gate': edge_gate, 'scale': scale}
    with torch.autocast(graph.device.type, enabled=False):
        if backend in kernels.FUSED:
            return kernel.edge_attention(query, key, value, graph, dropout_p=dropout_p, **terms)
        query, key, value = (_accumulated(x) for x in (query, key, value))
        weight = F.dropout(kernel.attention_weights(query, key, graph, **terms), dropout_p)
        out = kernel.weighted_sum(weight, value, graph).to(dtype)
    return (out, weight.to(dtype)) if return_attention_weights else out


def _diffused_attention(
    query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph, edge_bias: Tensor | None,
    edge_gate: Tensor | None, hops: int | float, teleport: float | Sequence[float] | Tensor,
    scale: float, dropout_p: float, return_attention_weights: bool, backend: str,
) -> Tensor | tuple[Tensor, Tensor]:
    check_square(graph)
    chance, kernel = spread_teleport(teleport, hops, value), _weighing_kernel(backend, graph)
    terms = {'edge_bias': edge_bias, 'edge_gate': edge_gate, 'scale': scale}
    is_plain = len(chance) > 0 and hops != math.inf
    with torch.autocast(graph.device.type, enabled=False):
        if is_plain and not return_attention_weights and hasattr(kernel, 'diffused_attention'):
            return kernel.diffused_attention(query, key, value, graph, chance, dropout_p=dropout_p,
                                             **terms)
        weight = kernel.attention_weights(_accumulated(query), _accumulated(key), graph, **terms)
        weight = F.dropout(weight, dropout_p) if dropout_p > 0 else weight
    out = attention_diffusion(weight, value, graph, hops=hops, teleport=teleport, backend=backend)
    return (out, weight.to(query.dtype)) if return_attention_weights else out


def attention_weights(
    query: Tensor,
    key: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None = None,
    edge_gate: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.,
    backend: str = 'auto',
) -> Tensor:
    r"""The weights of :func:`edge_attention` alone.

    .. math::
        \alpha_{ij} = \operatorname*{softmax}_{j \in \mathcal{N}(i)} \left( \mathrm{gate}_{ij}
        \, \frac{\langle \mathrm{query}_i, \mathrm{key}_j \rangle}{\sqrt{C}}
        + \mathrm{bias}_{ij} \right)

    Args:
        query (Tensor): floating ``[num_queries, heads, channels]``.
        key (Tensor): ``[num_keys, heads, channels]``, of the same dtype and device.
        graph (BipartiteGraph): The edges, which all heads share.
        edge_bias (Tensor, optional): ``[num_edges]`` or ``[num_edges, heads]``, added to logits.
        edge_gate (Tensor, optional): As ``edge_bias``; multiplies the scaled dot product.
        scale (float, optional): Instead of :math:`1/\sqrt{C}`.
        dropout_p (float): Probability in [0, 1) with which a weight is zeroed, the others being
            divided by ``1 - dropout_p``. Applied whenever positive.
        backend (str): As in :func:`edge_attention`, except ``'sdpa'``, which forms no weights.

    Returns:
        Tensor ``[num_edges, heads]`` in the order of ``graph.edge_index``, float32 for half
        precision.

    Raises:
        TypeError, ValueError, ImportError: As :func:`edge_attention`.

    Source: Diffuser, Eq. S.5.
    """
    edge_bias, edge_gate = check_arguments(query, key, key, graph, edge_bias, edge_gate)
    scale = _check_numbers(scale, dropout_p, query)
    kernel = _weighing_kernel(backend, graph)
    with torch.autocast(graph.device.type, enabled=False):
        weight = kernel.attention_weights(_accumulated(query), _accumulated(key), graph,
                                          edge_bias=edge_bias, edge_gate=edge_gate, scale=scale)
        return F.dropout(weight, dropout_p) if dropout_p > 0 else weight


def attention_diffusion(
    alpha: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    *,
    hops: int | float,
    teleport: float | Sequence[float] | Tensor,
    backend: str = 'auto',
) -> Tensor:
    r"""Values after several hops along the edges, with a chance to stop after each.

    .. math::
        Z_{(0)} = V, \qquad Z_{(k+1)} = (1 - t) \, A Z_{(k)} + t \, V

    A walk starts at the query, and every hop takes it to a key that its present token attends to,
    by the weights ``alpha``. It stops with the probability ``teleport`` before each hop, and after
    the last one anyway; the output is the mean value of where it stops. So a hop :math:`k < K` has
    the weight :math:`t (1 - t)^k` and the last :math:`(1 - t)^K`. They sum to 1, unlike those of a
    truncated series: at t = 0.1 and K = 5 there is 0.59 on :math:`A^5`.

    A ``teleport`` of its own for every hop makes any weights: :func:`heat_teleport` gives those of
    the heat kernel. ``alpha`` is the same for all hops, and so is what dropout made of it. A query
    without keys keeps ``teleport * value``, for its walks are lost where they go on. A model is
    causal at any depth if every edge is.

    Args:
        alpha (Tensor): floating ``[num_edges, heads]``, the weights of the edges.
        value (Tensor): floating ``[num_tokens, heads, channels]``.
        graph (BipartiteGraph): With as many keys as queries in every block, which are the same
            tokens.
        hops (int or float): Number of hops K. ``math.inf`` takes the limit
            :math:`t (I - (1 - t) A)^{-1} V` by iteration, to the rounding of ``value``'s dtype;
            its gradients are those of the limit, by iteration too, and no hop is kept for them.
        teleport (float, sequence of float or Tensor): In [0, 1]: a number, one for each hop, or
            what broadcasts to ``[hops, num_tokens, heads]``, a learned one for each head say.
            Number k is the probability to stop after k hops.
        backend (str): As in :func:`edge_attention`, except ``'sdpa'``. ``'numba'`` keeps
            ``hops`` times the values for the backward pass.

    Returns:
        Tensor ``[num_tokens, heads, channels]`` of the dtype of ``value``; half precision
        accumulates in float32. ``hops=0`` and ``teleport=1.`` return the values.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not fit, or the graph is not square.
        RuntimeError: Infinitely many hops did not converge: weights of a query that sum to more
            than 1, as dropout makes them, may let values grow.

    Source: Diffuser, Eq. S.6, S.7 and Proposition 4.

    Example:
        >>> import torch
        >>> from graphattn.functional import attention_diffusion, attention_weights
        >>> from graphattn.patterns import SlidingWindow
        >>> query, key, value = torch.randn(3, 100, 4, 32)
        >>> graph = SlidingWindow(2).build(100)
        >>> alpha = attention_weights(query, key, graph)
        >>> attention_diffusion(alpha, value, graph, hops=5, teleport=0.1).shape
        torch.Size([100, 4, 32])
    """
    _check_diffused(alpha, value, graph)
    chance = spread_teleport(teleport, hops, value)
    if len(chance) == 0:
        return value
    kernel, accumulated = _weighing_kernel(backend, graph), _accumulated(value)
    alpha = alpha.to(accumulated.dtype)
    with torch.autocast(graph.device.type, enabled=False):
        if hasattr(kernel, 'attention_diffusion') and hops != math.inf:
            return kernel.attention_diffusion(alpha, value, graph, chance)
        return diffuse(lambda z: kernel.weighted_sum(alpha, z, graph), accumulated,
                       chance.unsqueeze(-1), to_the_limit=hops == math.inf).to(value.dtype)


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
    dropout_p: float = 0.,
) -> Tensor:
    r"""Dense attention within each sequence, under a mask that is being learned.

    .. math::
        \mathrm{out}_i = \sum_j \alpha_{ij} \, \mathrm{value}_j, \qquad
        \alpha_{ij} = \operatorname*{softmax}_j \left( \frac{\langle \mathrm{query}_i,
        \mathrm{key}_j \rangle}{\sqrt{C}} + \mathrm{bias}_{ij} \right)

    with the bias of the mask, :math:`-c (1 - M_{ij})` (SparseBERT, Eq. 5 and 6). Sequences of one
    length are computed together, and nothing is padded. A query whose pairs are all off gives 0,
    with gradient 0. Every pair is multiplied, so NaN in a key or value reaches every query of its
    sequence. A mask that is settled is a graph, and :func:`edge_attention` is for graphs.

    Args:
        query (Tensor): floating ``[num_tokens, heads, channels]``.
        key (Tensor): ``[num_tokens, heads, channels]``, of the same dtype and device.
        value (Tensor): ``[num_tokens, heads, value_channels]``.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        mask (PairMask): The mask of each head, which all sequences share.
        hops (int or float): As in :func:`attention_diffusion`; one without a teleport is attention.
        teleport (float, sequence of float or Tensor): As in :func:`attention_diffusion`.
        scale (float, optional): Instead of :math:`1/\sqrt{C}`.
        dropout_p (float): Probability in [0, 1) with which a weight is zeroed, the others being
            divided by ``1 - dropout_p``. Applied whenever positive.

    Returns:
        Tensor ``[num_tokens, heads, value_channels]`` of the dtype of ``query``.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not fit, or a sequence is longer than the mask.

    Example:
        >>> import torch
        >>> from graphattn.functional import pair_attention
        >>> from graphattn.pair_layout import FreeLayout
        >>> from graphattn.pair_mask import PairMask
        >>> query, key, value = torch.randn(3, 7, 2, 4)
        >>> mask = PairMask(torch.rand(2, 16), FreeLayout(4), is_hard=False)
        >>> pair_attention(query, key, value, torch.tensor([0, 3, 7]), mask).shape
        torch.Size([7, 2, 4])
    """
    _check_pair_arguments(query, key, value, ptr, mask)
    scale = _check_numbers(scale, dropout_p, query)
    lengths, chance = ptr.diff().tolist(), spread_teleport(teleport, hops, value)
    parts = [x.split(lengths) for x in (query, key, value, chance.permute(1, 2, 0))]
    out = list(parts[2])
    with torch.autocast(query.device.type, enabled=False):
        for length in set(lengths) - {0}:
            members = [b for b, other in enumerate(lengths) if other == length]
            *blocks, block_chance = [torch.stack([part[b] for b in members]).transpose(1, 2)
                                     for part in parts]
            bias = mask.bias(length).to(query.dtype)
            # Kernels disagree on the softmax of nothing, so these rows attend and are then zeroed.
            is_empty = bias.isneginf().all(dim=-1, keepdim=True)
            bias = bias.masked_fill(is_empty, 0.)
            if is_one_hop(hops, teleport):
                attended = F.scaled_dot_product_attention(*blocks, attn_mask=bias,
                                                          dropout_p=dropout_p, scale=scale)
                attended = attended.masked_fill(is_empty, 0.)
            else:
                query_b, key_b, value_b = (_accumulated(x) for x in blocks)
                weight = (query_b @ key_b.mT * scale + bias).softmax(dim=-1)
                weight = F.dropout(weight.masked_fill(is_empty, 0.), dropout_p)
                attended = diffuse(weight.matmul, value_b,
                                   block_chance.movedim(-1, 0).unsqueeze(-1),
                                   to_the_limit=hops == math.inf).to(value.dtype)
            for b, block in zip(members, attended.transpose(1, 2).unbind()):
                out[b] = block
    # Joined to every argument, should there be nothing to attend to.
    nothing = sum(x[:0].sum() for x in (query, key, mask.values))
    return torch.cat([value[:0] + nothing, *out])


def edge_probability(model: FactorModel, graph: BipartiteGraph) -> Tensor:
    r"""The differentiable probability of each edge under a factor model.

    .. math:: p_{ij} = \hat{Q}_i \, \hat{S} \, \hat{K}_j^\top

    Only the pairs that are edges are computed, in O(edges x clusters) time and, by the kernels
    that ``'auto'`` prefers to ``'gather'``, O(edges + nodes x clusters) memory (SBM-Transformer,
    Sec. 4.1; exploration, a constant, is left out). A straight-through estimator turns it into a
    gate: :func:`graphattn.samplers.straight_through`.

    Args:
        model (FactorModel): The model that the edges were drawn from, of the graph's blocks.
        graph (BipartiteGraph): Any edges inside the model's blocks.

    Returns:
        Tensor ``[num_edges]`` of the dtype of the model's factors, float32 at least.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Model and graph differ in their blocks or device.
    """
    if not hasattr(model, 'mixed_query') or not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'model' and 'graph' must be a FactorModel and a BipartiteGraph (got "
                        f"{type(model).__name__} and {type(graph).__name__})")
    graph.check_unchanged()
    if model.device != graph.device:
        raise ValueError(f"'model' must be on {graph.device}, where the graph is (got "
                         f"{model.device})")
    for name in ('query_ptr', 'key_ptr'):
        ours, theirs = getattr(model, name), getattr(graph, name)
        if not torch.equal(ours, theirs):
            raise ValueError(f"'model' and 'graph' must have the same blocks (got {name} "
                             f"{ours.tolist()} and {theirs.tolist()})")
    kernel = kernels.load(_choose_sparse_backend(graph.device.type))
    with torch.autocast(graph.device.type, enabled=False):
        query = model.mixed_query().unsqueeze(1)
        key = model.key_factor.to(query.dtype).unsqueeze(1)
        return kernel.edge_dot(query, key, graph).squeeze(1)


def _choose_backend(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
                    edge_gate: Tensor | None, return_attention_weights: bool) -> str:
    if return_attention_weights:
        return 'csr' if kernels.load('csr').is_available(graph.device) else 'gather'
    is_complete = graph.num_edges == graph.num_pairs
    if edge_gate is None and (is_complete or _is_dense(graph) and _trains(query, key, value)):
        # Dense products would spread NaN and inf to queries that do not attend to them.
        if is_complete or _are_finite(key, value):
            return 'sdpa'
    return _choose_sparse_backend(graph.device.type)


def _weighing_kernel(backend: str, graph: BipartiteGraph) -> ModuleType:
    """A kernel that forms the weights."""
    if backend == 'auto':
        backend = _choose_sparse_backend(graph.device.type)
    kernel = kernels.load(backend)
    if not hasattr(kernel, 'attention_weights'):
        raise ValueError(f"'backend' must be one that forms weights (got {backend!r}); 'auto' "
                         f"takes one")
    return kernel


def _accumulated(tensor: Tensor) -> Tensor:
    """In the dtype of sums."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float))


def _is_dense(graph: BipartiteGraph) -> bool:
    keys_per_block = graph.num_keys / max(graph.num_blocks, 1)
    share = np.interp(np.log(max(keys_per_block, 1)), np.log(list(DENSE_ABOVE)),
                      list(DENSE_ABOVE.values()))
    return graph.num_edges > share * graph.num_pairs


def _trains(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@cache
def _choose_sparse_backend(device_type: str) -> str:
    device = torch.device(device_type)
    try:
        if kernels.load('numba').is_available(device):
            return 'numba'
    except Exception as error:  # a broken numba raises what it likes
        warnings.warn(f"backend 'numba' cannot be loaded ({error}); 'auto' takes slower ones",
                      stacklevel=2)
    return 'csr' if kernels.load('csr').is_available(device) else 'gather'


def _are_finite(*tensors: Tensor) -> bool:
    # One pass: a sum is finite only if all its terms are.
    return all(math.isfinite(tensor.detach().sum(dtype=torch.double)) for tensor in tensors)


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Checks the arguments of :func:`edge_attention`; returns bias and gate ready for a kernel."""
    _check_tensors(query, key, value, graph)
    return (_check_edge_values('edge_bias', edge_bias, query, graph),
            _check_edge_values('edge_gate', edge_gate, query, graph))


def _check_graph(graph: BipartiteGraph) -> None:
    if not isinstance(graph, BipartiteGraph):
        raise TypeError(f"'graph' must be a BipartiteGraph (got {type(graph).__name__}); see "
                        f"BipartiteGraph.from_edge_index, from_mask, from_scipy, from_networkx")
    graph.check_unchanged()


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph) -> None:
    _check_graph(graph)
    for name, tensor, nodes, num_nodes in (('query', query, 'queries', graph.num_queries),
                                           ('key', key, 'keys', graph.num_keys),
                                           ('value', value, 'keys', graph.num_keys)):
        check_floating(name, tensor)
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must be of query's dtype {query.dtype} (got "
                            f"{tensor.dtype})")
        if tensor.dim() != 3 or tensor.shape[:2] != (num_nodes, query.shape[1:2].numel()):
            expected = f'{num_nodes} {nodes}, {query.size(1) if query.dim() > 1 else "?"} heads'
            raise ValueError(f"'{name}' must be [nodes, heads, channels] with {expected} (got "
                             f"shape {tuple(tensor.shape)})")
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, where the graph is (got "
                             f"{tensor.device})")
    if query.size(1) == 0:
        raise ValueError(f"'query' must have at least one head (got shape {tuple(query.shape)})")
    if key.size(2) != query.size(2):
        raise ValueError(f"'key' must have query's {query.size(2)} channels (got {key.size(2)})")


def _check_diffused(alpha: Tensor, value: Tensor, graph: BipartiteGraph) -> None:
    _check_graph(graph)
    check_square(graph)
    check_floating('value', value)
    check_floating('alpha', alpha)
    if value.dim() != 3 or value.size(0) != graph.num_queries:
        raise ValueError(f"'value' must be [num_tokens, heads, channels] with {graph.num_queries} "
                         f"tokens (got shape {tuple(value.shape)})")
    if alpha.shape != (graph.num_edges, value.size(1)):
        raise ValueError(f"'alpha' must be [num_edges, heads] with {graph.num_edges} edges and "
                         f"{value.size(1)} heads (got shape {tuple(alpha.shape)})")
    for name, tensor in (('value', value), ('alpha', alpha)):
        if tensor.device != graph.device:
            raise ValueError(f"'{name}' must be on {graph.device}, where the graph is (got "
                             f"{tensor.device})")


def check_square(graph: BipartiteGraph) -> None:
    """Checks that queries and keys can be the same tokens."""
    if not torch.equal(graph.query_ptr, graph.key_ptr):
        raise ValueError(f"'graph' must have as many keys as queries in every block, for hops "
                         f"follow one another (got {graph})")


def _check_numbers(scale: float | None, dropout_p: float, query: Tensor) -> float:
    """Checks what every kind of attention is given besides tensors; returns the scale."""
    scale = 1 / math.sqrt(max(query.size(-1), 1)) if scale is None else scale
    for name, number in (('dropout_p', dropout_p), ('scale', scale)):
        if not isinstance(number, Real):
            raise TypeError(f"'{name}' must be a number (got {type(number).__name__})")
    if not 0. <= dropout_p < 1.:
        raise ValueError(f"'dropout_p' must be in [0, 1) (got {dropout_p})")
    if not math.isfinite(scale):
        raise ValueError(f"'scale' must be finite (got {scale})")
    return scale


def _check_pair_arguments(query: Tensor, key: Tensor, value: Tensor, ptr: Tensor,
                          mask: PairMask) -> None:
    if not isinstance(mask, PairMask):
        raise TypeError(f"'mask' must be a PairMask (got {type(mask).__name__}); for a graph "
                        f"there is edge_attention")
    for name, tensor in (('query', query), ('key', key), ('value', value)):
        check_floating(name, tensor)
        if tensor.dtype != query.dtype:
            raise TypeError(f"'{name}' must be of query's dtype {query.dtype} (got "
                            f"{tensor.dtype})")
        if tensor.dim() != 3 or tensor.shape[:2] != (query.size(0), mask.heads):
            raise ValueError(f"'{name}' must be [num_tokens, heads, channels] with "
                             f"{query.size(0)} tokens and the mask's {mask.heads} heads (got "
                             f"shape {tuple(tensor.shape)})")
        if tensor.device != mask.device:
            raise ValueError(f"'{name}' must be on {mask.device}, where the mask is (got "
                             f"{tensor.device})")
    if key.size(2) != query.size(2):
        raise ValueError(f"'key' must have query's {query.size(2)} channels (got {key.size(2)})")
    check_ptr('ptr', ptr, query.size(0), mask.device)


def _check_edge_values(
    name: str, values: Tensor | None, query: Tensor, graph: BipartiteGraph,
) -> Tensor | None:
    """``values`` as ``[num_edges, heads or 1]`` in the dtype of the computation."""
    if values is None:
        return None
    check_floating(name, values)
    if values.device != query.device:
        raise ValueError(f"'{name}' must be on {query.device}, where query is (got "
                         f"{values.device})")
    if values.shape == (graph.num_edges,):
        values = values.unsqueeze(1)
    elif values.shape != (graph.num_edges, query.size(1)):
        raise ValueError(f"'{name}' must be [num_edges] or [num_edges, heads] with "
                         f"{graph.num_edges} edges and {query.size(1)} heads (got shape "
                         f"{tuple(values.shape)})")
    return values.to(torch.promote_types(query.dtype, torch.float))


__all__ = ['attention_diffusion', 'attention_weights', 'edge_attention', 'edge_probability',
           'heat_teleport', 'pair_attention']
