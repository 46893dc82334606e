"""Soft masks, which give every pair of a sequence a weight."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_kind, check_number, check_shape
from graphattn._tensors import host_copy, is_traced
from graphattn.graphs.pair_layout import PairLayout


class PairMask:
    """Soft masks M, one for each head, added to the scores as :math:`-c (1 - M)` before the softmax
    (SparseBERT, Eq. 5 and 6)."""

    def __init__(self, values: Tensor, layout: PairLayout, *, logit_drop: float = 10.):
        check_values(values, layout, logit_drop)
        known = values.detach()
        if not is_traced(known) and not bool((is_in := (known >= 0) & (known <= 1)).all()):
            raise ValueError(f"'values' must be in [0, 1] (got {float(known[~is_in][0])})")
        self.values, self.layout, self.logit_drop = values, layout, float(logit_drop)
        self._index_of: dict[tuple[PairLayout, int, torch.device], Tensor] = {}

    @property
    def heads(self) -> int:
        return self.values.size(0)

    @property
    def device(self) -> torch.device:
        return self.values.device

    def bias(self, length: int) -> Tensor:
        """Return the bias :math:`-c (1 - M_{ij})` (Eq. 6), ``-inf`` for pairs that are always
        off."""
        # A pair with value 0 keeps exp(-c) of its weight, so a large c selects the largest value of
        # each row (c = 10,000: 0.50 next to 0.51 gets 1e-43), and c around 10 stays soft.
        drop = self.logit_drop * (self.values - 1)
        return self._of_pairs(drop, length, on=0., off=-torch.inf)

    def dense(self, length: int) -> Tensor:
        """Return the value of each pair, ``[heads, length, length]``; pairs always on have the
        value 1."""
        return self._of_pairs(self.values, length, on=1., off=0.)

    def norm(self) -> Tensor:
        return self.layout.norm(self.values)

    def density(self) -> float:
        return float(self.norm().detach()) / max(self.heads * self.layout.size**2, 1)

    def _of_pairs(self, values: Tensor, length: int, on: float, off: float) -> Tensor:
        constants = [values.new_full((self.heads, 1), constant) for constant in (on, off)]
        index = self._index(length)
        # For 12 heads of 128 tokens, index_select with its gradient took 0.25 ms, and [:, index]
        # took 1 ms.
        pairs = torch.cat([values, *constants], dim=1).index_select(1, index.flatten())
        return pairs.view(self.heads, length, length)

    def _index(self, length: int) -> Tensor:
        # All layers of a forward pass share this tensor; 8 bytes per pair, freed with the mask.
        key = self.layout, length, self.device
        if key not in self._index_of:
            with torch.inference_mode(False):  # may be used for gradients later
                self._index_of[key] = self.layout.index(length, self.device)
        return self._index_of[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), 'values': self.values.detach(), '_index_of': {}}

    def __repr__(self) -> str:
        return (f'{type(self).__name__}(heads={self.heads}, {self.layout}, '
                f'density={self.density():.1%})')


class MaskedPairs:
    """All pairs of tokens of each sequence with soft masks, in place of a graph."""

    is_square = True

    def __init__(self, mask: PairMask, ptr: Tensor, multiply: bool = False):
        self.mask, self.ptr, self.multiply = mask, ptr, multiply

    @property
    def device(self) -> torch.device:
        return self.mask.device

    @property
    def num_queries(self) -> int:
        return sum(self._lengths)

    num_keys = num_queries

    @property
    def num_edges(self) -> int:
        return sum(length**2 for length in self._lengths)

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Return pairs ``(length, count)`` of the nonempty sequences, with ascending lengths."""
        return sorted(Counter(length for length in self._lengths if length).items())

    def sort(self, x: Tensor) -> Tensor:
        """Return the rows of ``x``, one for each token, with sequences of fewer tokens first."""
        return x if self._order is None else x.index_select(0, self._order)

    def unsort(self, x: Tensor) -> Tensor:
        return x if self._order is None else torch.zeros_like(x).index_copy(0, self._order, x)

    @cached_property
    def _lengths(self) -> list[int]:
        return host_copy(self.ptr).diff().tolist()

    @cached_property
    def _order(self) -> Tensor | None:
        if self._lengths == sorted(self._lengths):
            return None
        lengths = torch.tensor(self._lengths, device='cpu')
        order = lengths.repeat_interleave(lengths).argsort(stable=True)
        return order.to(self.device, non_blocking=True)


def check_values(values: Tensor, layout: PairLayout, logit_drop: float) -> None:
    check_kind('layout', layout, PairLayout)
    check_floating(values=values)
    check_shape('values', values, ('heads', layout.num_values), f' for {layout}')
    check_number('logit_drop', logit_drop, 'positive and finite')
