"""Dense attention under a soft mask."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graphattn._checks import check_bool
from graphattn.functional.checks import check_terms
from graphattn.functional.drive import drive
from graphattn.functional.recursion import check_hops
from graphattn.graphs.pair_mask import MaskedPairs, PairMask
from graphattn.ops import LogitTerms


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
        hops (int or float): Number of hops, as in :func:`attention_diffusion`. One hop without
            teleport is plain attention.
        teleport (float, sequence of float or Tensor): As in :func:`attention_diffusion`.
        scale (float, optional): Replaces :math:`1/\sqrt{C}`.
        softcap (float, optional): As in :func:`edge_attention`.
        sink (Tensor, optional): As in :func:`edge_attention`, ``[heads]``.
        dropout_p (float): Probability in [0, 1) of zeroing a weight; the others are divided by
            ``1 - dropout_p``. Applied whenever positive.
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
