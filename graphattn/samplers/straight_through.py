"""Gradient estimators for sampled edges."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._checks import check_choice, check_floating, check_kind, check_shape
from graphattn._tensors import constant_of
from graphattn.graphs.graph import BipartiteGraph

__all__ = ['ESTIMATORS', 'density_penalty', 'straight_through']

ESTIMATORS = ('one-sided', 'paper', 'repo')
_BOUNDS = {'one-sided': (None, 0.), 'repo': (-1., 1.)}


def straight_through(edge_prob: Tensor | BipartiteGraph,
                     estimator: str = 'one-sided') -> dict[str, Tensor]:
    r"""Return a gate or bias that passes gradients to the probabilities of sampled edges. The gate
    or bias does not change the output of attention.

    Let :math:`\ell_{ij} = Q_i K_j^\top / \sqrt{d_h}`, let :math:`A_{ij}` be the score before the
    softmax, and let :math:`g_{ij} = \partial L / \partial A_{ij}`. The gradients of the three
    estimators are

    .. math::
        \texttt{one-sided}: \frac{\partial L}{\partial p_{ij}} = \min(g_{ij}, 0), \qquad
        \texttt{paper}\,(\text{Eq. 9}): g_{ij} \, \ell_{ij}, \qquad
        \texttt{repo}: \mathrm{clamp}(g_{ij}, -1, 1).

    **The authors' code** (``'repo'``) uses the derivative of a gate of 1 that multiplies
    :math:`e^{A_{ij}}`, as the mask does in Eq. 3 and 4. A softmax is invariant to a shift of all
    scores, so :math:`\sum_j g_{ij} = 0`. This gradient therefore moves probability between edges
    but does not control the number of edges. This gradient also removes too many edges. With
    :math:`o_i = \sum_j a_{ij} V_j`, losing an edge moves :math:`o_i` by :math:`\Delta = a_{ij} (o_i
    - V_j) / (1 - a_{ij})` and the loss by

    .. math::
        L(M_{ij} = 0) - L(M_{ij} = 1) \approx -\frac{g_{ij}}{1 - a_{ij}} +
        \tfrac{1}{2} \Delta^\top H \Delta,

    where H is the curvature of the loss in :math:`o_i`. The curvature term favours the edge, but
    the gradient, evaluated with the edge present, does not include this term.

    **Eq. 9** (``'paper'``) is the gradient of a gate that multiplies the score. For
    :math:`\ell_{ij} < 0`, this gradient promotes an edge whose score should decrease. Over the
    edges of a query, the gradients sum to :math:`\partial L / \partial \log \beta`, for scores
    :math:`\beta \ell_{ij}`. So edges are gained while the loss favours sharper attention, and lost
    while the loss favours softer attention. If removing edges makes the loss favour even softer
    attention, the edges do not return.

    **The default** (``'one-sided'``) uses :math:`g_{ij}` only where its sign is reliable. An edge
    is needed if its score should increase. If the score should decrease, no gate is needed, because
    the score itself can decrease. :func:`density_penalty` removes edges; without this penalty,
    density grows to full attention. ``experiments.papers.ours.estimators`` compares the three
    estimators.

    Args:
        edge_prob (Tensor or BipartiteGraph): The probability :math:`p_{ij}` of each sampled edge,
            floating ``[num_edges]``; or a graph with ``edge_prob``. The probabilities of a graph
            need not be computed yet.
        estimator (str): ``'one-sided'``, ``'paper'`` or ``'repo'``.

    Returns:
        A dict with one keyword argument for ``graphattn.functional.edge_attention``: ``edge_gate``,
        ones ``[num_edges]``, for ``'paper'``; ``edge_bias``, zeros ``[num_edges]``, for the other
        estimators.

    Raises:
        TypeError: ``edge_prob`` is neither a floating point Tensor nor a graph.
        ValueError: The estimator is unknown, or the graph has no ``edge_prob``.

    Source: SBM-Transformer, Sec. 4.2, and its authors' code.

    Example:
        >>> import torch
        >>> from graphattn.samplers import straight_through
        >>> edge_prob = torch.tensor([0.2, 0.9], requires_grad=True)
        >>> bias = straight_through(edge_prob)['edge_bias']
        >>> bias.detach()
        tensor([0., 0.])
        >>> torch.autograd.grad((bias * torch.tensor([3., -4.])).sum(), edge_prob)
        (tensor([ 0., -4.]),)
    """
    check_choice('estimator', estimator, ESTIMATORS)
    return pass_gradient(_carrier(edge_prob), estimator)


def pass_gradient(carrier: Tensor, estimator: str) -> dict[str, Tensor]:
    # straight_through without checks
    if estimator == 'paper':
        return {'edge_gate': constant_of(carrier, 1.)}
    return {'edge_bias': _ZeroOfClampedGradient.apply(carrier, *_BOUNDS[estimator])}


class _ZeroOfClampedGradient(torch.autograd.Function):
    # A hook on the zeros would clamp their gradient too, which callers may request.
    @staticmethod
    def forward(edge_prob: Tensor, lowest: float | None, highest: float | None) -> Tensor:
        return edge_prob.new_zeros(()).expand(edge_prob.shape)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.bounds = inputs[1:]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.clamp(*ctx.bounds), None, None

    generate_vmap_rule = True


def _carrier(edge_prob: Tensor | BipartiteGraph) -> Tensor:
    # the tensor [num_edges] whose gradient reaches the probabilities
    if not isinstance(edge_prob, BipartiteGraph):
        check_floating(edge_prob=edge_prob)
        check_shape('edge_prob', edge_prob, ('num_edges',))
        return edge_prob
    gate = edge_prob.edge_gate
    if gate is None:
        raise ValueError("'graph' must have edge_prob, which receives the gradient; pass "
                         "graph.with_edge_prob(edge_prob)")
    return gate


def density_penalty(graph: BipartiteGraph) -> Tensor:
    r"""Return the mean density of the segments of a graph, with a gradient to the probability of
    each sampled edge.

    .. math::
        L_s = \frac{1}{B} \sum_b \frac{|E_b|}{n_b m_b}, \qquad
        \frac{\partial L_s}{\partial p_e} = \frac{1}{B \, n_b m_b}
        \text{ for each edge } e \text{ of segment } b.

    Segments without pairs count as 0. Pairs that were not drawn receive no gradient, so the
    expected gradient of a pair is proportional to the probability that the pair is drawn. Multiply
    the penalty by a weight :math:`\lambda`, and add the product to the loss.

    Args:
        graph (BipartiteGraph): A graph with ``edge_prob``.

    Returns:
        floating Tensor, a scalar.

    Raises:
        TypeError: ``graph`` is not a BipartiteGraph.
        ValueError: The graph has no ``edge_prob``.

    Source: SBM-Transformer, Sec. 5.2.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph
        >>> from graphattn.samplers import density_penalty
        >>> graph = BipartiteGraph.from_mask(torch.eye(2, dtype=torch.bool))
        >>> edge_prob = torch.tensor([0.2, 0.9], requires_grad=True)
        >>> penalty = density_penalty(graph.with_edge_prob(edge_prob))
        >>> penalty.item(), torch.autograd.grad(penalty, edge_prob)
        (0.5, (tensor([0.2500, 0.2500]),))
    """
    check_kind('graph', graph, BipartiteGraph)
    gate = _carrier(graph)
    num_pairs = graph.segments.pairs_per_segment()
    edge_share = 1 / (num_pairs.clamp(min=1).double() * graph.num_segments)
    dtype = torch.promote_types(gate.dtype, torch.float32)
    share = edge_share.to(dtype).repeat_interleave(graph.edges_per_segment(),
                                                   output_size=graph.num_edges)
    return (gate * share).sum()
