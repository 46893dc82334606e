"""The attention of Nystromformer, a baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import scatter

from experiments.baselines.base import Baseline
from graphattn.extension import check_sides, check_size


class Nystromformer(Baseline):
    r"""Softmax attention through landmarks: means of adjacent queries and of adjacent keys.

    .. math::
        \operatorname{softmax}\Big(\frac{Q \tilde K^\top}{\sqrt C}\Big) \,
        \operatorname{softmax}\Big(\frac{\tilde Q \tilde K^\top}{\sqrt C}\Big)^{+} \,
        \operatorname{softmax}\Big(\frac{\tilde Q K^\top}{\sqrt C}\Big) V
        + \operatorname{conv}(V)

    These are Eq. 13 and 14 and Fig. 3 of the source. The product is computed from the right in
    O(nmC + m^2 C) operations; the published code starts on the left, in O(nm^2). Sequences with at
    most as many tokens as landmarks have full attention. In the package ``nystrom-attention``, the
    output of a sequence also depends on padding, and on the other sequences of the batch through
    the initial norms of the iteration.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        landmarks (int): Number of landmarks m; each is the mean of n/m tokens.
        kernel_size (int, optional): Odd width of a convolution over each head's values. There is no
            convolution if ``None``.
        iterations (int): Number of iterations for the pseudoinverse.

    Source: Xiong et al., "Nystromformer" (2021). The pseudoinverse :math:`{}^+` is its Eq. 15, by
    Razavi et al. (2014).
    """

    def __init__(self, channels: int, heads: int, *, landmarks: int = 256,
                 kernel_size: int | None = 35, iterations: int = 6,
                 head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(landmarks=landmarks)
        check_size('iterations', iterations, at_least=1)
        self.landmarks, self.iterations, self.conv = landmarks, iterations, None
        if kernel_size is not None:
            check_sides(kernel_size=kernel_size)
            if kernel_size % 2 == 0:
                raise ValueError(f"'kernel_size' must be odd, such as 33, so that the convolution "
                                 f"is centred (got {kernel_size})")
            self.conv = nn.Conv2d(heads, heads, (kernel_size, 1), padding=(kernel_size // 2, 0),
                                  groups=heads, bias=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.conv is not None:
            self.conv.reset_parameters()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        if query.size(2) <= self.landmarks:
            out = F.scaled_dot_product_attention(query, key, value)
        else:
            out = self._through_landmarks(query, key, value)
        return out if self.conv is None else out + self._convolved(value)

    def _convolved(self, value: Tensor) -> Tensor:
        """Return ``self.conv(value)``, by one-dimensional convolutions: with one head and a wide
        kernel, torch 2.13's Conv2d writes out of bounds on CPUs."""
        weight = self.conv.weight.squeeze(3).repeat_interleave(self.head_channels, dim=0)
        by_channel = value.transpose(2, 3).flatten(1, 2)
        out = F.conv1d(by_channel, weight, padding=weight.size(2) // 2, groups=len(weight))
        return out.unflatten(1, (self.heads, self.head_channels)).transpose(2, 3)

    def _through_landmarks(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        landmark = torch.arange(query.size(2), device=query.device) * self.landmarks
        landmark = landmark // query.size(2)
        query_mean, key_mean = (scatter(x, landmark, dim=2, dim_size=self.landmarks, reduce='mean')
                                for x in (query, key))
        scale = self.head_channels**-0.5
        between = (query_mean @ key_mean.mT * scale).softmax(dim=-1)
        summary = F.scaled_dot_product_attention(query_mean, key, value)
        summary = self._inverse(between).to(summary.dtype) @ summary
        return F.scaled_dot_product_attention(query, key_mean, summary)

    def _inverse(self, matrix: Tensor) -> Tensor:
        """Return the pseudoinverse of each matrix in ``matrix``, whose rows sum to 1, in at least
        float32."""
        dtype = torch.promote_types(matrix.dtype, torch.float32)
        with torch.autocast(matrix.device.type, enabled=False):
            matrix = matrix.to(dtype)
            identity = torch.eye(self.landmarks, dtype=dtype, device=matrix.device)
            inverse = matrix.mT / matrix.sum(dim=-2).amax(dim=-1)[..., None, None]
            for _ in range(self.iterations):
                product = matrix @ inverse
                inverse = inverse / 4 @ (13 * identity - product @ (
                    15 * identity - product @ (7 * identity - product)))
        return inverse
