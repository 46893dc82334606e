"""Inverse-CDF draws from many discrete distributions at once, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def integer_cdf(share: Tensor, num_distributions: int) -> Tensor:
    """Return where each cell of a row of distributions begins, int64 ``[share.numel() + 1]``.

    Integers add without rounding, so that a cell of share 0 has no width, and the precision of a
    distribution does not depend on its position in the row.
    """
    width = (share * 2**share_bits(num_distributions)).round().long().flatten()
    return torch.cat([width.new_zeros(1), width.cumsum(0)])


def share_bits(num_distributions: int) -> int:
    """Return the number of bits for each distribution of a row, such that int64 holds the sum of
    all."""
    return min(62 - num_distributions.bit_length(), 50)


def draw_cells(cdf: Tensor, first: Tensor, last: Tensor, generator: torch.Generator | None
               ) -> Tensor:
    """Draw a cell of ``first:last`` for each draw."""
    low, high = cdf[first], cdf[last]
    uniform = torch.rand(low.shape, dtype=torch.float64, device=cdf.device, generator=generator)
    # A float64 below 1, times n, rounds to a value below n, so the target stays in first:last.
    target = low + (uniform * (high - low)).long()
    return torch.searchsorted(cdf[1:], target, right=True)
