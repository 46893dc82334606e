"""Tables of positions, whose numbers follow from their sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn


class PositionTable(nn.Module, ABC):
    """Numbers for each position that are neither learned nor saved.

    Wherever the module moves they are made anew: ``to_empty``, by which one that was built on meta
    gets memory before its parameters are loaded, leaves in them what was in that memory, and a
    dtype that they were rounded to is not felt in the next.

    Args:
        num_embeddings (int): How many positions.
        channels (int): Size of what a position gets.
    """

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
    r""":math:`i / 10000^{2j / C}` for each position i and even channel 2j, float64."""
    rate = 10_000 ** (-torch.arange(0, channels, 2, dtype=torch.double) / channels)
    return torch.outer(torch.arange(num_embeddings), rate)
