"""The attention of Combiner, a baseline."""

import torch
from torch import Tensor

from experiments.baselines.base import Baseline
from experiments.baselines.sinkhorn import in_blocks
from graphattn.extension import check_sides


class Combiner(Baseline):
    r"""Full attention that factors: a token draws a token of its own block or another block, and
    then a token of this block.

    .. math::
        \mathrm{out}_i = \sum_{j \in b(i)} p(j \mid i) v_j
        + \sum_{r \neq b(i)} p(r \mid i) \sum_{j \in r} p(j \mid r) v_j

    The probabilities :math:`p(\cdot \mid i)` are one softmax over the logits
    :math:`\langle q_i, k_j \rangle / \sqrt C` of the tokens of the own block and
    :math:`\langle q_i, \bar k_r \rangle / \sqrt C` of all other blocks. Those of the tokens of a
    block are the softmax of :math:`\langle \bar q_r, k_j \rangle / \sqrt C`. The bars are the
    maxima over the block. This is Combiner-Fixed of the source, in both directions.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        block (int): Number of tokens of a block; the source has the root of the length.

    Source: Ren et al., "Combiner: Full attention transformer with sparse computation cost" (2021).
    """

    def __init__(self, channels: int, heads: int, *, block: int = 32,
                 head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(block=block)
        self.block = block

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        length, scale = key.size(2), self.head_channels**-0.5
        is_missing = ~in_blocks(torch.ones(length, 1, device=key.device), self.block).bool().mT
        query_max, key_max = (in_blocks(x, self.block, -torch.inf).amax(dim=3)
                              for x in (query, key))
        query, key, value = (in_blocks(x, self.block) for x in (query, key, value))
        inner = query_max.unsqueeze(3) @ key.mT * scale
        inner = inner.masked_fill(is_missing, -torch.inf).softmax(dim=-1)
        summary = (inner.to(value.dtype) @ value).squeeze(3)
        own = (query @ key.mT * scale).masked_fill(is_missing, -torch.inf)
        is_own = torch.eye(key.size(2), dtype=torch.bool, device=key.device).unsqueeze(1)
        other = (query @ key_max.mT.unsqueeze(2) * scale).masked_fill(is_own, -torch.inf)
        weight = torch.cat([own, other], dim=-1).softmax(dim=-1).to(value.dtype)
        own, other = weight.split([self.block, key.size(2)], dim=-1)
        out = own @ value + other @ summary.unsqueeze(2)
        return out.flatten(2, 3)[:, :, :length]
