"""Linear attention, a baseline."""

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.attention.performer import linear_attention

from experiments.baselines.base import Baseline
from graphattn.extension import check_choice


class Linear(Baseline):
    r"""Attention whose weights are products of positive features, in time linear in the length.

    .. math::
        \frac{\phi(Q) \, \phi(K)^\top V}{\phi(Q) \, \phi(K)^\top 1}, \qquad
        \phi(x) = \operatorname{elu}(x) + 1

    These are Eq. 4 to 7 of the source.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        form (str): ``'normalised'`` is the equation above. ``'released'`` divides by
            :math:`\sqrt n` instead of the sum of the weights, as the code of SBM-Transformer and of
            Nystromformer does.

    Source: Katharopoulos et al., "Transformers are RNNs" (2020).
    """

    def __init__(self, channels: int, heads: int, *,
                 form: Literal['normalised', 'released'] = 'normalised',
                 head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_choice('form', form, ('normalised', 'released'))
        self.form = form

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        query, key = F.elu(query) + 1, F.elu(key) + 1
        if self.form == 'normalised':
            return linear_attention(query, key, value)
        return query @ (key.mT @ value / math.sqrt(key.size(2)))
