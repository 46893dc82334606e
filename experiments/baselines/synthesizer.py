"""The attention of Synthesizer, a baseline."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.baselines.base import Baseline
from graphattn.extension import check_choice, check_sides


class Synthesizer(Baseline):
    r"""Softmax attention whose logits are no products of queries and keys.

    .. math::
        \operatorname{softmax}(B) V, \qquad
        B_i = W_2 \operatorname{relu}(W_1 x_i + b_1) + b_2 \quad \text{or} \quad B = R

    The logits B of a token depend on this token alone (``'dense'``), or on no token
    (``'random'``). Each head has its own :math:`W_1, W_2` or R. A sequence of n
    tokens uses the first n columns.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        max_length (int): Maximum number of tokens of a sequence.
        form (str): ``'dense'`` or ``'random'``.

    Source: Tay et al., "Synthesizer: Rethinking self-attention for transformer models" (2021).
    """

    def __init__(self, channels: int, heads: int, max_length: int, *,
                 form: Literal['dense', 'random'] = 'dense', head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(max_length=max_length)
        check_choice('form', form, ('dense', 'random'))
        self.max_length, self.form, self.lin_key = max_length, form, None
        if form == 'random':
            self.lin_query, rows = None, max_length
        else:
            self.bias, rows = nn.Parameter(torch.empty(heads, 1, max_length)), self.head_channels
        self.weight = nn.Parameter(torch.empty(heads, rows, max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.weight, std=0.02)
        if self.form == 'dense':
            nn.init.normal_(self.bias, std=0.02)

    def attend(self, query: Tensor | None, key: Tensor | None, value: Tensor, seed: int) -> Tensor:
        length = value.size(2)
        if self.form == 'random':
            logit = self.weight[:, :length, :length]
        else:
            logit = F.relu(query) @ self.weight[..., :length] + self.bias[..., :length]
        return logit.softmax(dim=-1).to(value.dtype) @ value
