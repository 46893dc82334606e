"""Gradients through sampled edges, which have none of their own."""

from __future__ import annotations

from difflib import get_close_matches

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_kind
from graphattn.graph import BipartiteGraph

_ESTIMATORS = ('paper', 'repo')


def straight_through(edge_prob: Tensor, estimator: str = 'paper') -> dict[str, Tensor]:
    r"""Lets a loss reach the probabilities of the sampled edges, and changes nothing else.

    With :math:`\ell_{ij} = Q_i K_j^\top / \sqrt{d_h}` and the score :math:`A_{ij}` that enters
    the softmax,

    .. math::
        \texttt{paper}\,(\text{Eq. 9}): \frac{\partial L}{\partial p_{ij}} =
        \frac{\partial L}{\partial A_{ij}} \, \ell_{ij}, \qquad
        \texttt{repo}: \frac{\partial L}{\partial p_{ij}} =
        \mathrm{clamp}\Bigl(\frac{\partial L}{\partial A_{ij}}, -1, 1\Bigr).

    The paper's gate of 1 multiplies the score. The authors' code multiplies the softmax by the
    gate and normalises again, which has the derivative of a bias of 0 on the score, and clips
    it. **The two disagree in sign wherever** :math:`\ell_{ij} < 0`: there the paper's estimator
    promotes an edge whose score should fall. A result should say which one it used.

    Args:
        edge_prob (Tensor): floating ``[num_edges]``, :math:`p_{ij}` of each sampled edge.
        estimator (str): ``'paper'`` or ``'repo'``.

    Returns:
        Keyword arguments for ``graphattn.functional.edge_attention``: ``edge_gate``, ones
        ``[num_edges]``, or ``edge_bias``, zeros ``[num_edges]``.

    Raises:
        TypeError: ``edge_prob`` is not a floating point Tensor.
        ValueError: The estimator is unknown.

    Source: SBM-Transformer, Sec. 4.2.

    Example:
        >>> import torch
        >>> from graphattn.samplers import straight_through
        >>> edge_prob = torch.tensor([0.2, 0.9], requires_grad=True)
        >>> gate = straight_through(edge_prob)['edge_gate']
        >>> gate.detach()
        tensor([1., 1.])
        >>> torch.autograd.grad((gate * torch.tensor([3., -4.])).sum(), edge_prob)
        (tensor([ 3., -4.]),)
    """
    check_floating('edge_prob', edge_prob)
    if edge_prob.dim() != 1:
        raise ValueError(f"'edge_prob' must be [num_edges] (got shape {tuple(edge_prob.shape)})")
    if estimator not in _ESTIMATORS:
        close = get_close_matches(str(estimator), _ESTIMATORS) or _ESTIMATORS
        raise ValueError(f"'estimator' must be 'paper' or 'repo' (got {estimator!r}; did you mean "
                         f"{' or '.join(map(repr, close))}?)")
    if estimator == 'paper':
        return {'edge_gate': _Constant.apply(edge_prob, 1.)}
    zero = _Constant.apply(edge_prob, 0.)
    if zero.requires_grad:
        zero.register_hook(lambda grad: grad.clamp(-1, 1))
    return {'edge_bias': zero}


class _Constant(torch.autograd.Function):
    """One number for all edges, with the gradient of ``edge_prob``. It takes no memory: kernels
    know by its stride of 0 that it is one number."""

    @staticmethod
    def forward(edge_prob: Tensor, value: float) -> Tensor:
        return edge_prob.new_full((), value).expand(edge_prob.shape)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, _: None) -> Tensor:
        return tangent.view_as(tangent)

    @staticmethod
    def vmap(info, in_dims, edge_prob: Tensor, value: float) -> tuple[Tensor, int | None]:
        return _Constant.apply(edge_prob, value), in_dims[0]


def density_penalty(graph: BipartiteGraph) -> Tensor:
    r"""The mean density of the blocks, with a gradient to the probability of each sampled edge.

    .. math::
        L_s = \frac{1}{B} \sum_b \frac{|E_b|}{n_b m_b}, \qquad
        \frac{\partial L_s}{\partial p_e} = \frac{1}{B \, n_b m_b}
        \text{ for each edge } e \text{ of block } b.

    Blocks without pairs count 0. Pairs that were not drawn get no gradient: the penalty is felt
    in proportion to how often an edge is drawn. Add it to a loss, times the weight
    :math:`\lambda`.

    Args:
        graph (BipartiteGraph): A graph that carries ``edge_prob``.

    Returns:
        floating Tensor, a scalar.

    Raises:
        TypeError: ``graph`` is not a BipartiteGraph.
        ValueError: The graph carries no ``edge_prob``.

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
    if graph.edge_prob is None:
        raise ValueError("'graph' must carry edge_prob, through which the penalty is felt; add it "
                         "with graph.with_edge_prob")
    num_pairs = graph.blocks.pairs_per_block()
    edge_share = 1 / (num_pairs.clamp(min=1).double() * graph.num_blocks)
    dtype = torch.promote_types(graph.edge_prob.dtype, torch.float32)
    gate = straight_through(graph.edge_prob)['edge_gate']
    return (gate * edge_share.repeat_interleave(graph.edges_per_block()).to(dtype)).sum()
