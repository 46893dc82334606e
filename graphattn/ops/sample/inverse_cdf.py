"""Inverse-CDF draws from many discrete distributions at once, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def integer_cdf(share: Tensor, num_distributions: int) -> Tensor:
    """Return the cumulative shares of the cells of several distributions, one distribution after
    the other: where each cell begins, int64 ``[share.numel() + 1]``.

    Integers are added without rounding. So a cell of share 0 has no width, and the precision of a
    distribution does not depend on its position.
    """
    width = (share * 2**share_bits(num_distributions)).round().long().flatten()
    return torch.cat([width.new_zeros(1), width.cumsum(0)])


def share_bits(num_distributions: int) -> int:
    """Return how many bits each share may have, so that the sum of the shares of
    ``num_distributions`` distributions fits in int64."""
    return min(62 - num_distributions.bit_length(), 50)


def draw_cells(cdf: Tensor, first: Tensor, last: Tensor, generator: torch.Generator | None
               ) -> Tensor:
    """Return a random cell for each draw, int64 ``[num_draws]``, from the cells ``first:last`` of
    the draw. Probabilities are proportional to the shares of the cells."""
    low, high = cdf[first], cdf[last]
    uniform = torch.rand(low.shape, dtype=torch.float64, device=cdf.device, generator=generator)
    # A float64 below 1, times n, rounds to a value below n, so the target stays in first:last.
    target = low + (uniform * (high - low)).long()
    return torch.searchsorted(cdf[1:], target, right=True)
