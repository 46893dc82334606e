"""Draws from many discrete distributions at once by their inverse CDFs, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def integer_cdf(share: Tensor, num_distributions: int) -> Tensor:
    """Return cumulative shares of the cells of several distributions, int64 ``[cells + 1]``."""
    # Integers are added without rounding, so a cell with a share of 0 has no width, and the
    # precision does not depend on the position. Cells of a distribution are adjacent, and sum to 1.
    width = (share * 2**share_bits(num_distributions)).round().long().flatten()
    return torch.cat([width.new_zeros(1), width.cumsum(0)])


def share_bits(num_distributions: int) -> int:
    """Return the bits to which shares are rounded, so few that the sum of all fits in int64."""
    return min(62 - num_distributions.bit_length(), 50)


def draw_cells(cdf: Tensor, first: Tensor, last: Tensor, generator: torch.Generator | None
               ) -> Tensor:
    """Return for each draw d a cell of ``first[d]:last[d]``, in proportion to its share."""
    low, high = cdf[first], cdf[last]
    uniform = torch.rand(low.shape, dtype=torch.float64, device=cdf.device, generator=generator)
    # A float64 below 1, times n, rounds to a value below n, so the target stays in first:last.
    target = low + (uniform * (high - low)).long()
    return torch.searchsorted(cdf[1:], target, right=True)
