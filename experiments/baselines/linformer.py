"""The attention of Linformer, a baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.baselines.base import Baseline
from graphattn.extension import check_sides


class Linformer(Baseline):
    r"""Softmax attention to ``rank`` positions, to which keys and values are projected.

    .. math:: \operatorname{softmax}\Big(\frac{Q (E K)^\top}{\sqrt{C}}\Big) E V

    This is Eq. 7 of the source. Each head has one projection E for its keys and values. The code of
    SBM-Transformer also shares E between layers; here each layer has its own. A sequence of n
    tokens uses the first n columns of E.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        max_length (int): Maximum number of tokens of a sequence.
        rank (int): Number of projected keys.

    Source: Wang et al., "Linformer: Self-attention with linear complexity" (2020).
    """

    def __init__(self, channels: int, heads: int, max_length: int, *, rank: int = 256,
                 head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(max_length=max_length, rank=rank)
        self.max_length, self.rank = max_length, rank
        self.projection = nn.Parameter(torch.empty(heads, rank, max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.projection, std=0.02)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        projection = self.projection[..., :key.size(2)]
        return F.scaled_dot_product_attention(query, projection @ key, projection @ value)
