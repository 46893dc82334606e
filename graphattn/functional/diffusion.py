"""Diffusion of values over several hops along the edges of a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from graphattn._checks import MAX_HOPS, check_number, check_size
from graphattn._tensors import accumulated, without_autocast
from graphattn.functional.checks import check_diffused
from graphattn.functional.choose import choose_weighing
from graphattn.functional.recursion import diffuse, spread_teleport
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend


def attention_diffusion(
    alpha: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    *,
    hops: int | float,
    teleport: float | Sequence[float] | Tensor,
    backend: str = 'auto',
) -> Tensor:
    r"""Return values after several hops along the edges, each mixed with the initial values.

    .. math::
        Z_{(0)} = V, \qquad Z_{(k+1)} = (1 - t) \, A Z_{(k)} + t \, V

    The output of a query is the expected value at the end of a random walk. The walk starts at the
    query. Each hop moves the walk from its current token to a key of this token, with the
    probabilities ``alpha``. Before each hop, the walk ends with probability ``teleport``; after the
    last hop, it always ends. So the weight of :math:`A^k V` is :math:`t (1 - t)^k` for :math:`k <
    K`, and :math:`(1 - t)^K` for :math:`k = K`. These weights sum to 1, unlike the weights of a
    truncated series: at t = 0.1 and K = 5, :math:`A^5` has the weight 0.59.

    A separate ``teleport`` for each hop leads to any other weights of the powers of A;
    :func:`heat_teleport` returns the teleports of the heat kernel. All hops use the same ``alpha``,
    including its dropout. A query without keys has the output ``teleport * value``. If every edge
    is causal, the output is causal for any number of hops.

    Args:
        alpha (Tensor): floating ``[num_edges, heads]``, the weights of the edges.
        value (Tensor): floating ``[num_tokens, heads, channels]``.
        graph (BipartiteGraph): A square graph: keys and queries of each segment are the same
            tokens.
        hops (int or float): Number of hops K. ``math.inf`` computes the limit :math:`t (I - (1 - t)
            A)^{-1} V`, by hops until convergence or, after 200 hops, by GMRES. The gradients of the
            limit are computed in the same way, without storing hops. The error of the limit and of
            its gradients is about :math:`10 \epsilon / (1 - \rho)` times their largest value. Here
            :math:`\epsilon` is the rounding error of the dtype (of float32 for half precision), and
            :math:`\rho` is the maximum of :math:`(1 - t) \sum_j |A_{ij}|`. Rounding of the weights
            alone would cause an error of this size. The gradient of ``teleport`` is a sum of values
            with this error.
        teleport (float, sequence of float or Tensor): Probability in [0, 1]: one number for all
            hops, one number for each hop, or a Tensor broadcastable to ``[hops, num_tokens,
            heads]``, for example with one learned value for each head. Entry k, counted from 0, is
            the probability that a walk that has made k hops ends.
        backend (str): As in :func:`edge_attention`, except ``'sdpa'``. ``'numba'``
            stores ``hops`` times the values for the backward pass.

    Returns:
        Tensor ``[num_tokens, heads, channels]`` of the dtype of ``value``; half precision
        accumulates in float32. With ``hops=0`` or ``teleport=1.``, the result is ``value``.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not match, or the graph is not square.
        RuntimeError: With ``hops=math.inf``, hops do not converge, because the weights of a query
            sum to more than 1, as after dropout.

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
    check_diffused(alpha, value, graph)
    spread = spread_teleport(teleport, hops, value)
    kernel = choose_weighing(backend, graph.device, value.size(-1))
    return diffuse_along(kernel, alpha, value, graph, spread, hops)


def diffuse_along(kernel: Backend, alpha: Tensor, value: Tensor, graph: BipartiteGraph,
                  spread: Tensor, hops: int | float) -> Tensor:  # spread: [hops, num_tokens, heads]
    """Return :func:`attention_diffusion` by a backend, without checking arguments."""
    if len(spread) == 0:
        return value
    alpha = alpha.to(accumulated(value).dtype)
    with without_autocast(graph.device):
        if kernel.attention_diffusion is not None and hops != math.inf:
            return kernel.attention_diffusion(alpha, value, graph, spread)
        return diffuse(lambda weight, z: kernel.weighted_sum(weight, z, graph), alpha,
                       accumulated(value), spread.unsqueeze(-1),
                       to_the_limit=hops == math.inf).to(value.dtype)


def heat_teleport(hops: int, time: float) -> tuple[float, ...]:
    r"""Return the ``teleport`` of each hop for diffusion by the heat kernel.

    .. math::
        \theta_k = \frac{e^{-\tau} \tau^k / k!}{\sum_{m=0}^{K} e^{-\tau} \tau^m / m!}, \qquad
        t_k = \frac{\theta_k}{\sum_{m=k}^{K} \theta_m}

    The paper defines the heat kernel only for infinitely many hops. Here the weights
    :math:`\theta_k` of K hops are scaled to sum to 1, as Eq. S.6 requires of all weights, so that
    diffusion does not change constant values.

    Args:
        hops (int): Number of hops K.
        time (float): :math:`\tau`, positive: the mean number of hops if K is infinite.

    Returns:
        tuple of ``hops`` floats in [0, 1], for :func:`attention_diffusion` and the layers.

    Raises:
        TypeError, ValueError: An argument is out of range.

    Source: Diffuser, Eq. S.6 and Appendix A.

    Example:
        >>> from graphattn.functional import heat_teleport
        >>> [round(teleport, 3) for teleport in heat_teleport(2, time=1.)]
        [0.4, 0.667]
    """
    check_size('hops', hops, at_most=MAX_HOPS)
    check_number('time', time, 'positive and finite')
    log_weight = np.array([k * math.log(time) - math.lgamma(k + 1) for k in range(hops + 1)])
    weight = np.exp(log_weight - log_weight.max())
    to_come = weight[::-1].cumsum()[::-1]  # adds small weights first
    # If this weight and all later weights are 0, any teleport is right.
    teleport = np.divide(weight, to_come, out=np.ones_like(weight), where=to_come > 0)
    return tuple(teleport[:-1].tolist())
