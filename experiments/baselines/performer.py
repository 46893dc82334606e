"""The attention of Performer, a baseline."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn.attention.performer import generalized_kernel, linear_attention

from experiments.baselines.base import Baseline
from graphattn.extension import check_choice, check_sides

MIN_FEATURE = 1e-6  # keeps the weights of a query nonzero if its features underflow


class Performer(Baseline):
    r"""Linear attention with random features whose inner products approximate the exponentials of
    softmax (FAVOR+).

    .. math::
        \phi(x) = \frac{1}{\sqrt m} \exp\Big(W x - \frac{\lVert x \rVert^2}{2}\Big), \qquad
        \mathrm{E}\big[\phi(x)^\top \phi(y)\big] = e^{x^\top y}

    These are Eq. 5 and Lemma 1 of the source. The features are those of queries and keys divided by
    :math:`C^{1/4}`. The rows of W are orthogonal in blocks of C. W is drawn once and kept.

    The product of features and the ReLU features are computed by PyG. PyG's ``PerformerAttention``
    is this layer with ``kernel='relu'``, apart from three differences. It has :math:`C \log C`
    features, it includes padding in the sum of the weights, and its W comes from a QR decomposition
    whose mean is not 0, so that the equation above does not hold.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        features (int): Number of random features m.
        kernel (str): ``'softmax'``, or ``'relu'`` as in the code of SBM-Transformer:
            :math:`\phi(x) = \operatorname{relu}(W x) + 0.001`.

    Source: Choromanski et al., "Rethinking attention with Performers" (2021).
    """

    def __init__(self, channels: int, heads: int, *, features: int = 256,
                 kernel: Literal['softmax', 'relu'] = 'softmax', head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(features=features)
        check_choice('kernel', kernel, ('softmax', 'relu'))
        self.features, self.kernel = features, kernel
        self.register_buffer('projection', torch.empty(features, self.head_channels))
        self._draw_projection()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._draw_projection()

    @torch.no_grad()
    def _draw_projection(self) -> None:
        """Draw the random matrix of the features: orthogonal rows with norms of normal ones."""
        length = torch.randn_like(self.projection).norm(dim=1, keepdim=True)
        blocks = [nn.init.orthogonal_(torch.empty(self.head_channels, self.head_channels))
                  for _ in range(-(-self.features // self.head_channels))]
        self.projection.copy_(length * torch.cat(blocks)[:self.features].to(length))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        if self.kernel == 'relu':
            query, key = (generalized_kernel(x, self.projection) for x in (query, key))
        else:
            query = self._softmax_features(query, dim=-1)
            key = self._softmax_features(key, dim=(-2, -1))
        return linear_attention(query, key, value)

    def _softmax_features(self, x: Tensor, dim: int | tuple[int, int]) -> Tensor:
        """Return the positive random features of queries or keys, up to a factor over ``dim`` that
        cancels in attention."""
        x = x * self.head_channels**-0.25
        exponent = x @ self.projection.mT - x.square().sum(dim=-1, keepdim=True) / 2
        return (exponent - exponent.amax(dim=dim, keepdim=True).detach()).exp() + MIN_FEATURE
