"""Draws from many discrete distributions at once by their inverse CDFs, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def integer_cdf(share: Tensor, num_distributions: int) -> Tensor:
    """Return the cumulative shares of the cells of several distributions, as integers for
    :func:`draw_cells`.

    Integers are added without rounding. So a cell with a share of 0 has no width, and the precision
    of a distribution does not depend on its position.

    Args:
        share (Tensor): The probability of each cell in its distribution, floating. The shares of a
            distribution sum to 1, and its cells are adjacent.
        num_distributions (int): Number of distributions.

    Returns:
        Tensor: Where each cell begins, and the end of the last, int64 ``[share.numel() + 1]``.
    """
    width = (share * 2**share_bits(num_distributions)).round().long().flatten()
    return torch.cat([width.new_zeros(1), width.cumsum(0)])


def share_bits(num_distributions: int) -> int:
    """Return the number of bits b to which shares are rounded, as integers up to ``2**b``. It is so
    small that the sum over ``num_distributions`` distributions fits in int64."""
    return min(62 - num_distributions.bit_length(), 50)


def draw_cells(cdf: Tensor, first: Tensor, last: Tensor, generator: torch.Generator | None
               ) -> Tensor:
    """Return random cells, such as keys, int64 ``[num_draws]``. Draw d chooses among the cells
    ``first[d]:last[d]`` in proportion to their shares.

    Args:
        cdf (Tensor): The result of :func:`integer_cdf`.
        first (Tensor): The first cell of each draw, int64 ``[num_draws]``.
        last (Tensor): The cell after the last of each draw, int64 ``[num_draws]``.
        generator (torch.Generator, optional): Random generator.
    """
    low, high = cdf[first], cdf[last]
    uniform = torch.rand(low.shape, dtype=torch.float64, device=cdf.device, generator=generator)
    # A float64 below 1, times n, rounds to a value below n, so the target stays in first:last.
    target = low + (uniform * (high - low)).long()
    return torch.searchsorted(cdf[1:], target, right=True)
