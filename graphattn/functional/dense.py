"""Dense attention under a soft mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._tensors import on_cpu
from graphattn.functional.checks import check_numbers, check_pair_arguments
from graphattn.functional.choose import accumulated
from graphattn.functional.recursion import check_hops, diffuse, is_one_hop, spread_teleport
from graphattn.graphs.pair_mask import PairMask
from graphattn.ops.attention.sdpa import attend_to_blocks


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
    r"""Dense attention within each sequence, under a soft mask.

    .. math::
        \mathrm{out}_i = \sum_j \alpha_{ij} \, \mathrm{value}_j, \qquad
        \alpha_{ij} = \operatorname*{softmax}_j \left( \frac{\langle \mathrm{query}_i,
        \mathrm{key}_j \rangle}{\sqrt{C}} + \mathrm{bias}_{ij} \right)

    with the bias of the mask, :math:`-c (1 - M_{ij})` (SparseBERT, Eq. 5 and 6). Sequences of one
    length are computed together, and nothing is padded. Every pair is multiplied, so NaN in a key
    or value reaches every query of its sequence. A hard mask is a graph, and :func:`edge_attention`
    is for graphs.

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
        >>> from graphattn.graphs.pair_layout import FreeLayout
        >>> from graphattn.graphs.pair_mask import PairMask
        >>> query, key, value = torch.randn(3, 7, 2, 4)
        >>> mask = PairMask(torch.rand(2, 16), FreeLayout(4))
        >>> pair_attention(query, key, value, torch.tensor([0, 3, 7]), mask).shape
        torch.Size([7, 2, 4])
    """
    check_pair_arguments(query, key, value, ptr, mask)
    scale = check_numbers(scale, dropout_p, query)
    check_hops(hops)
    lengths, spread = on_cpu(ptr).diff().tolist(), spread_teleport(teleport, hops, value)
    parts = [x.split(lengths) for x in (query, key, value, spread.permute(1, 2, 0))]
    out = list(parts[2])
    with torch.autocast(query.device.type, enabled=False):
        for length in set(lengths) - {0}:
            members = [b for b, other in enumerate(lengths) if other == length]
            *blocks, block_spread = [torch.stack([part[b] for b in members]).transpose(1, 2)
                                     for part in parts]
            bias = mask.bias(length)
            bias = bias.to(torch.promote_types(bias.dtype, query.dtype))
            # This changes no weight and spares all that follows the rounding of large numbers.
            bias = bias - bias.detach().amax(dim=-1, keepdim=True)
            if is_one_hop(hops, teleport):
                attended = attend_to_blocks(*blocks, bias.to(query.dtype), scale=scale,
                                            dropout_p=dropout_p)
            else:
                query_b, key_b, value_b = (accumulated(x) for x in blocks)
                logit = query_b @ key_b.mT * scale + bias.to(query_b.dtype)
                weight = logit.softmax(dim=-1)
                weight = F.dropout(weight, dropout_p)
                attended = diffuse(torch.matmul, weight, value_b,
                                   block_spread.movedim(-1, 0).unsqueeze(-1),
                                   to_the_limit=hops == math.inf).to(value.dtype)
            for b, block in zip(members, attended.transpose(1, 2).unbind()):
                out[b] = block
    # Joined to every argument, should there be nothing to attend to.
    nothing = sum(x[:0].sum() for x in (query, key, mask.values))
    return torch.cat([value[:0] + nothing, *out])
