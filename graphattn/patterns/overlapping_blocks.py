"""Diffuser's window: blocks that overlap by half."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphattn.patterns.base import RangePattern
from graphattn.patterns.layouts import positions


@dataclass(frozen=True, repr=False)
class OverlappingBlocks(RangePattern):
    r"""Dense blocks of ``width`` tokens, each overlapping the next by half.

    The sequence is cut into chunks of half a width. A token of chunk c attends to the chunks c - 1,
    c and c + 1,

    .. math::
        |\lfloor 2j / w \rfloor - \lfloor 2i / w \rfloor| \le 1.

    These three chunks span 1.5 w tokens, while ``SlidingWindow(w // 2)`` spans about w tokens. The
    window of three blocks in BigBird is the same pattern; BigBird calls the chunks blocks.

    Args:
        width (int): Width w of a block, an even number.

    Raises:
        TypeError: ``width`` is not an int.
        ValueError: ``width`` is odd or below 2. :meth:`build` also raises it if ``width`` exceeds
            the number of keys.

    Source: Feng et al., "Diffuser" (2023), Sparse Pattern Design ("cross-window attention by
    overlapping w/2 tokens").

    Example:
        >>> from graphattn.patterns import OverlappingBlocks
        >>> OverlappingBlocks(4).build(7).to_mask().int()
        tensor([[1, 1, 1, 1, 0, 0, 0],
                [1, 1, 1, 1, 0, 0, 0],
                [1, 1, 1, 1, 1, 1, 0],
                [1, 1, 1, 1, 1, 1, 0],
                [0, 0, 1, 1, 1, 1, 1],
                [0, 0, 1, 1, 1, 1, 1],
                [0, 0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    """

    width: int

    def __post_init__(self):
        self._require_int('width', at_least=2)
        if self.width % 2:
            raise ValueError(f"'width' must be even, because neighbouring blocks overlap by half "
                             f"their width (got {self.width})")

    @property
    def min_tokens(self) -> int:
        return self.width

    def key_ranges(self, queries: range, num_queries: int,
                   num_keys: int) -> tuple[Tensor, Tensor]:
        if self.width > num_keys:
            raise ValueError(f"'width' must be at most {num_keys}, the number of keys (got "
                             f"{self.width})")
        half = self.width // 2
        chunk_start = positions(queries)[:, None] // half * half
        return chunk_start - half, chunk_start + 2 * half
