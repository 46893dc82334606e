"""Values that travel several hops along the edges of a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from graphattn._checks import MAX_HOPS, check_number, check_size
from graphattn._tensors import without_autocast
from graphattn.functional.checks import check_diffused
from graphattn.functional.choose import accumulated, choose_weighing
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
    r"""Return values after several hops along the edges, each mixed with the values that they began
    with.

    .. math::
        Z_{(0)} = V, \qquad Z_{(k+1)} = (1 - t) \, A Z_{(k)} + t \, V

    A walk starts at the query, and every hop takes it to a key that its present token attends to,
    by the weights ``alpha``. Before each hop it ends with the probability ``teleport``, and after
    the last one anyway; the output is the mean value of where it ends. So a hop :math:`k < K` has
    the weight :math:`t (1 - t)^k` and the last :math:`(1 - t)^K`. They sum to 1, unlike those of a
    truncated series: at t = 0.1 and K = 5 there is 0.59 on :math:`A^5`.

    A ``teleport`` of its own for every hop makes any weights: :func:`heat_teleport` gives those of
    the heat kernel. ``alpha`` is the same for all hops, and so is what dropout made of it. A query
    without keys keeps ``teleport * value``, as the rest has no key to come from. A model is
    causal at any depth if every edge is.

    Args:
        alpha (Tensor): floating ``[num_edges, heads]``, the weights of the edges.
        value (Tensor): floating ``[num_tokens, heads, channels]``.
        graph (BipartiteGraph): With as many keys as queries in every segment, which are the same
            tokens.
        hops (int or float): Number of hops K. ``math.inf`` takes the limit
            :math:`t (I - (1 - t) A)^{-1} V`, by as many hops as it takes or, after 200, by
            GMRES. It and its gradients, which are found in the same way and for which no hop is
            kept, are exact to about :math:`10 \epsilon / (1 - \rho)` times the largest number
            among them, as rounding of the weights alone would leave them: :math:`\epsilon` is the
            rounding of the dtype (float32 for half precision) and :math:`\rho` the largest of
            :math:`(1 - t) \sum_j |A_{ij}|`. The gradient of ``teleport`` is a sum of such numbers.
        teleport (float, sequence of float or Tensor): In [0, 1]: a number, one for each hop, or
            what broadcasts to ``[hops, num_tokens, heads]``, a learned one for each head say.
            Number k, counted from 0, is the probability that a walk ends after k hops.
        backend (str): As in :func:`edge_attention`, except ``'sdpa'`` and ``'flex'``.
            ``'numba'`` keeps ``hops`` times the values for the backward pass.

    Returns:
        Tensor ``[num_tokens, heads, channels]`` of the dtype of ``value``; half precision
        accumulates in float32. ``hops=0`` and ``teleport=1.`` return the values.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Sizes, devices or values do not fit, or the graph is not square.
        RuntimeError: Infinitely many hops do not converge: weights of a query that sum to more
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
    check_diffused(alpha, value, graph)
    spread = spread_teleport(teleport, hops, value)
    if len(spread) == 0:
        return value
    kernel = choose_weighing(backend, graph.device, value.size(-1))
    return diffuse_along(kernel, alpha, value, graph, spread, hops)


def diffuse_along(kernel: Backend, alpha: Tensor, value: Tensor, graph: BipartiteGraph,
                  spread: Tensor, hops: int | float) -> Tensor:
    """:func:`attention_diffusion` of checked arguments, by the teleport of every hop."""
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
    r"""Return the ``teleport`` of each hop that diffuses attention by the heat kernel.

    .. math::
        \theta_k = \frac{e^{-\tau} \tau^k / k!}{\sum_{m=0}^{K} e^{-\tau} \tau^m / m!}, \qquad
        t_k = \frac{\theta_k}{\sum_{m=k}^{K} \theta_m}

    The weights of K hops are scaled to sum to 1, as Eq. S.6 asks of all weights: constant values
    then stay what they are. The paper has the kernel with infinitely many hops only.

    Args:
        hops (int): Number of hops K.
        time (float): :math:`\tau`, the mean number of hops were there no last one; positive.

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
    to_come = weight[::-1].cumsum()[::-1]  # from the smallest weights on, where time is short
    # Where all weights to come have vanished, any teleport will do.
    teleport = np.divide(weight, to_come, out=np.ones_like(weight), where=to_come > 0)
    return tuple(teleport[:-1].tolist())
