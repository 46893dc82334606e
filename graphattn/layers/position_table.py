"""Tables of fixed values for each position. They are computed, and neither learned nor saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphattn._explained import Explained


class PositionTable(nn.Module, Explained, ABC):
    """Base class of modules that hold a table of fixed values for each position."""

    # Computed again, in float64, when the module moves to another device or dtype: to_empty fills
    # the table, and a cast to a wider dtype does not start from rounded values.
    def __init__(self, num_embeddings: int, channels: int):
        super().__init__()
        self.num_embeddings, self.channels = num_embeddings, channels
        table = self.numbers().to(torch.get_default_dtype()).contiguous()
        self.register_buffer('table', table, persistent=False)

    @abstractmethod
    def numbers(self) -> Tensor:
        """Return the table, float64 ``[num_embeddings, ...]``."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PositionTable:
        before = self.table
        super()._apply(fn, recurse)
        if self.table is not before:
            self.table.copy_(self.numbers())
        return self


def angles(num_embeddings: int, channels: int) -> Tensor:
    """Return the angle :math:`i / 10000^{2j / C}` of each position i and even channel 2j,
    float64."""
    rate = 10_000 ** (-torch.arange(0, channels, 2, dtype=torch.double) / channels)
    return torch.outer(torch.arange(num_embeddings), rate)
