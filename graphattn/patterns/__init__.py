"""Fixed attention patterns: edges as a function of lengths, combined by ``|``, ``&`` and ``-``.

A custom pattern is a frozen dataclass with a method ``edges``. It combines with all other patterns.
Tensors that ``edges`` creates are on the device of ``build``:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from graphattn.patterns import GlobalTokens, Pattern
    >>> @dataclass(frozen=True, repr=False)
    ... class Dilated(Pattern):
    ...     step: int
    ...     def edges(self, num_queries, num_keys, generator):
    ...         query = torch.arange(num_queries).repeat(3)
    ...         key = query + torch.tensor([-1, 0, 1]).repeat_interleave(num_queries) * self.step
    ...         return torch.stack([key, query])[:, (0 <= key) & (key < num_keys)]
    >>> (Dilated(2) | GlobalTokens(1)).build(5).to_mask().int()
    tensor([[1, 1, 1, 1, 1],
            [1, 1, 0, 1, 0],
            [1, 0, 1, 0, 1],
            [1, 1, 0, 1, 0],
            [1, 0, 1, 0, 1]], dtype=torch.int32)

:func:`register` adds a name of a pattern for expressions and configs.
"""

from graphattn.patterns.base import Difference, Intersection, Pattern, Union
from graphattn.patterns.blocks import Fixed, OverlappingBlocks
from graphattn.patterns.distances import Causal, Full, LogSparse, Offsets, SlidingWindow, Strided
from graphattn.patterns.edge_list import EdgeList
from graphattn.patterns.expression import parse
from graphattn.patterns.global_tokens import GlobalTokens, Star
from graphattn.patterns.grids import Neighborhood, ShiftedWindows
from graphattn.patterns.mask import Mask, load_masks, save_masks
from graphattn.patterns.presets import get, register
from graphattn.patterns.pruning import (
    Cropped,
    prune,
    prune_at_random,
    randomly_dropped,
    without_diagonal,
)
from graphattn.patterns.random_keys import RandomBlocks, RandomKeys, RandomPairs, RandomRegular

__all__ = [
    'Causal',
    'Cropped',
    'Difference',
    'EdgeList',
    'Fixed',
    'Full',
    'GlobalTokens',
    'Intersection',
    'LogSparse',
    'Mask',
    'Neighborhood',
    'Offsets',
    'OverlappingBlocks',
    'Pattern',
    'RandomBlocks',
    'RandomKeys',
    'RandomPairs',
    'RandomRegular',
    'ShiftedWindows',
    'SlidingWindow',
    'Star',
    'Strided',
    'Union',
    'get',
    'load_masks',
    'parse',
    'prune',
    'prune_at_random',
    'randomly_dropped',
    'register',
    'save_masks',
    'without_diagonal',
]
