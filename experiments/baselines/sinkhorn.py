"""Sparse Sinkhorn attention, a baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.baselines.base import Baseline
from graphattn.extension import check_sides, check_size


class Sinkhorn(Baseline):
    r"""Softmax attention to the own block of tokens, and to a block that a learned soft permutation
    of the blocks brings there.

    .. math::
        \operatorname{softmax}\Big(\frac{Q_b K_b^\top}{\sqrt C}\Big) V_b
        + \operatorname{softmax}\Big(\frac{Q_b (S K)_b^\top}{\sqrt C}\Big) (S V)_b, \qquad
        S = \operatorname{sinkhorn}\Big(\sum_{j \in b} k_j W\Big)

    The rows and the columns of S are divided by their sums in turn. As in the authors' code for
    Long Range Arena, each of the two blocks has its own softmax, W is one matrix for each head, and
    S has no Gumbel noise. Tokens that the last block lacks are zeros for S.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        max_length (int): Maximum number of tokens of a sequence.
        block (int): Number of tokens of a block.
        iterations (int): Number of normalisations of rows and columns.

    Source: Tay et al., "Sparse Sinkhorn Attention" (2020).
    """

    def __init__(self, channels: int, heads: int, max_length: int, *, block: int = 64,
                 iterations: int = 5, head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(max_length=max_length, block=block)
        check_size('iterations', iterations, at_least=1)
        self.max_length, self.block, self.iterations = max_length, block, iterations
        self.sorting = nn.Parameter(torch.empty(heads, self.head_channels,
                                                -(-max_length // block)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.sorting, std=self.head_channels**-0.5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        length = key.size(2)
        query, key, value = (in_blocks(x, min(self.block, length)) for x in (query, key, value))
        is_token = in_blocks(torch.ones(length, 1, device=key.device), key.size(3)).bool().mT
        local = F.scaled_dot_product_attention(query, key, value, is_token)
        permutation = self._permutation(key.sum(dim=3))
        key, value = (torch.einsum('shij,shjtc->shitc', permutation, x) for x in (key, value))
        out = local + F.scaled_dot_product_attention(query, key, value)
        return out.flatten(2, 3)[:, :, :length]

    def _permutation(self, summary: Tensor) -> Tensor:
        """Return S, ``[num_sequences, heads, blocks, blocks]``, of the sums of the blocks' keys."""
        logit = summary @ self.sorting[..., :summary.size(2)]
        for _ in range(self.iterations):
            logit = logit.log_softmax(dim=-1).log_softmax(dim=-2)
        return logit.exp().to(summary.dtype)


def in_blocks(x: Tensor, block: int, missing: float = 0.) -> Tensor:
    """Cut rows ``[..., length, C]`` into ``[..., blocks, block, C]``; the last may lack some."""
    return F.pad(x, (0, 0, 0, -x.size(-2) % block), value=missing).unflatten(-2, (-1, block))
