"""Blocks of tokens: Diffuser's window, and the fixed pattern of the Sparse Transformer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn.patterns.base import RangePattern, RowPattern
from graphattn.patterns.layouts import key_ranges, positions, ranges


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


@dataclass(frozen=True, repr=False)
class Fixed(RowPattern):
    r"""A query attends to its block and to the last ``summary`` positions of every block,

    .. math::
        \lfloor j / l \rfloor = \lfloor i / l \rfloor \quad \text{or} \quad
        j \bmod l \ge l - \text{summary}.

    Args:
        block (int): Length l of a block.
        summary (int): Number of positions at the end of each block to which all queries attend.
            With 0, attention stays inside the blocks.
        causal (bool): Whether a query attends only to :math:`j \le i`, as in Child et al. (2019).
            The masks of SparseBERT are bidirectional.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``block`` is below 1, or ``summary`` is negative or above ``block``.

    Source: Child et al., "Generating long sequences with sparse Transformers" (2019), Sec. 4.3, the
        union of both heads; SparseBERT, Figure 1(d).

    Example:
        >>> from graphattn.patterns import Fixed
        >>> Fixed(3).build(6).to_mask().int()
        tensor([[1, 1, 1, 0, 0, 1],
                [1, 1, 1, 0, 0, 1],
                [1, 1, 1, 0, 0, 1],
                [0, 0, 1, 1, 1, 1],
                [0, 0, 1, 1, 1, 1],
                [0, 0, 1, 1, 1, 1]], dtype=torch.int32)
    """

    block: int
    summary: int = 1
    causal: bool = False

    def __post_init__(self):
        self._require_int('block', at_least=1)
        self._require_int('summary', at_least=0)
        self._require_bool('causal')
        if self.summary > self.block:
            raise ValueError(f"'summary' must be at most {self.block}, the length of a 'block' "
                             f"(got {self.summary})")

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        query = positions(queries)
        last_key = query if self.causal else torch.full_like(query, num_keys - 1)
        block_start = query // self.block * self.block
        block_stop = (block_start + self.block).clamp_(max=num_keys)
        own_block = key_ranges(queries, block_start[:, None],
                               torch.minimum(block_stop, last_key + 1)[:, None])

        first_key = self.block - self.summary
        num_summary_keys = (num_keys // self.block * self.summary
                            + max(num_keys % self.block - first_key, 0))
        summary_key = (torch.arange(0, num_keys, self.block)[:, None]
                       + torch.arange(first_key, self.block)).flatten()[:num_summary_keys]
        num_visible = torch.searchsorted(summary_key, last_key, right=True)
        reader, number = ranges(torch.zeros_like(query), num_visible)
        summary = torch.stack([summary_key[number], reader + queries.start])
        return torch.cat([own_block, summary], dim=1)
