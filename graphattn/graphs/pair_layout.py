"""Layouts of masks, which decide which pairs of a query and a key share a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._checks import MAX_SIDE, check_bool, check_device, check_size
from graphattn._explained import Explained
from graphattn._tensors import host_copy


@dataclass(frozen=True)
class PairLayout(Explained, ABC):
    """Assign the index of a value to each (query, key) pair, so decide which pairs share a
    value."""

    # The last token of every sequence is a separator, so it uses the last position of the mask,
    # even in a shorter sequence. Indices always_on and always_off mark pairs without a value.
    size: int  # number n of tokens of the mask
    # whether rows and columns of the first and last token of a sequence are always on
    border: bool = False

    def __post_init__(self):
        check_size('size', self.size, at_most=MAX_SIDE)
        check_bool(border=self.border)
        fewest = 3 if self.border else 1
        if self.size < fewest:
            inside = ' with a border, to have an inside' if self.border else ''
            raise ValueError(f"'size' must be at least {fewest}{inside} (got {self.size})")
        object.__setattr__(self, 'size', int(self.size))

    @property
    @abstractmethod
    def num_values(self) -> int:
        """Number of different values that pairs of tokens can have."""

    @abstractmethod
    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        """Return which of the ``num_values`` values each pair of positions has; border pairs are
        ignored."""

    @abstractmethod
    def _inner_multiplicity(self, device: torch.device) -> Tensor:
        """Return how many pairs inside the border have each value, int64 ``[num_values]``."""

    @property
    def always_on(self) -> int:
        """The number that :meth:`index` gives to pairs whose query always attends to the key."""
        return self.num_values

    @property
    def always_off(self) -> int:
        """The number that :meth:`index` gives to pairs whose query never attends to the key."""
        return self.num_values + 1

    @property
    def max_length(self) -> int | None:
        """Number of tokens of the longest sequence that a mask covers, or ``None`` without a
        limit."""
        return self.size

    def value_of(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        """Return the index of the value of each (query, key) pair of positions, of their broadcast
        shape."""
        self.check_length(length)
        value = self._inner_value(query, key, length)
        if not self.border:
            return value
        on_border = (query == 0) | (query == length - 1) | (key == 0) | (key == length - 1)
        return value.masked_fill(on_border, self.always_on)

    def index(self, length: int, device: torch.device | str = 'cpu') -> Tensor:
        """Return the index of the value of every pair of a sequence, int64 ``[length, length]``."""
        self.check_length(length)
        token = torch.arange(length, device=check_device(device))
        return self.value_of(token[:, None], token, length)

    def rows(self, is_on: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the degrees, keys and values' indices of the pairs that are on, by head, query and
        key."""
        # is_on: bool [heads, num_values]
        index = self.index(length, is_on.device)
        constants = [is_on.new_full((len(is_on), 1), constant) for constant in (True, False)]
        of_pairs = torch.cat([is_on, *constants], dim=1).index_select(1, index.flatten())
        of_pairs = of_pairs.view(len(is_on), length, length)
        _, query, key = of_pairs.nonzero(as_tuple=True)
        # The degrees [heads, length] are on the CPU, because all callers read them.
        return of_pairs.sum(dim=2).cpu(), key, index[query, key]

    def norm(self, values: Tensor) -> Tensor:
        r"""Return the penalty :math:`\|M\|_1` of SparseBERT's Eq. 7: each value counts once for
        every pair that shares it, and the border counts too."""
        multiplicity = self.multiplicity(values.device)
        always_on = len(values) * multiplicity[self.always_on]
        return (values @ multiplicity[:-2].to(values.dtype)).sum() + always_on

    def multiplicity(self, device: torch.device | str = 'cpu') -> Tensor:
        """Return how many of the n x n pairs have each index, int64 ``[num_values + 2]``."""
        inner = self._inner_multiplicity(check_device(device))
        on_border = self.size**2 - self._inner_size**2
        # The last two count the pairs that are always on and always off. No pairs are enumerated.
        return torch.cat([inner, inner.new_full((1,), on_border), inner.new_zeros(1)])

    def check_length(self, length: int) -> None:
        check_size('length', length)
        if self.max_length is not None and length > self.max_length:
            raise ValueError(f"'length' must be at most {self.max_length}, the number of tokens of "
                             f"the mask (got {length})")

    def _inside(self, token: Tensor, length: int) -> Tensor:
        # With a border, the first and the last position, counting begins at the second one.
        position = torch.where(token == length - 1, self.size - 1, token)
        return position - int(self.border)

    @property
    def _inner_size(self) -> int:
        return self.size - 2 * int(self.border)


@dataclass(frozen=True)
class FreeLayout(PairLayout):
    """Layout in which every pair has its own value: SparseBERT's unstructured masks."""

    @property
    def num_values(self) -> int:
        return self._inner_size**2

    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        return self._inside(query, length) * self._inner_size + self._inside(key, length)

    def _inner_multiplicity(self, device: torch.device) -> Tensor:
        return torch.ones(self.num_values, dtype=torch.long, device=device)


@dataclass(frozen=True)
class DiagonalLayout(PairLayout):
    """Layout in which pairs at the same distance share a value: SparseBERT's structured masks."""

    # n - 2 values inside a border (Sec. 4.1), n values without one, as in the authors' code. Longer
    # sequences are covered: pairs further apart than all pairs of the mask are off.
    border: bool = True

    @property
    def num_values(self) -> int:
        return self._inner_size

    @property
    def max_length(self) -> None:
        return None

    def _inner_value(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        distance = (query - key).abs()
        return distance.masked_fill(distance >= self.num_values, self.always_off)

    def rows(self, is_on: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        # Time and memory are proportional to the number of pairs that are on.
        self.check_length(length)
        # The CPU lists the diagonals, because there are few of them, and this needs a single
        # synchronisation.
        offset, first, degree = self._offsets(host_copy(is_on), length - 2 * int(self.border))
        value = offset.abs()
        if self.border:
            offset, value, first, degree = self._with_border(offset, value, first, degree, length)
        num_pairs = int(degree.sum())
        dtype = torch.int32 if num_pairs < 2**31 else torch.int64
        end = degree.flatten().cumsum(0)
        begin = end - degree.flatten()
        numbers = (first.flatten() - begin, begin, end, offset, value, degree.flatten())
        shift, begin, end, offset, value, count = (x.to(is_on.device, non_blocking=True)
                                                   for x in numbers)
        row = torch.repeat_interleave(count.to(dtype), output_size=num_pairs)
        number = torch.arange(num_pairs, dtype=dtype, device=is_on.device)
        number += shift.to(dtype).index_select(0, row)
        query = torch.arange(length, dtype=dtype, device=is_on.device).repeat(len(is_on))
        key = query.index_select(0, row)
        del row  # frees one of the largest arrays
        key += offset.to(dtype).index_select(0, number)
        value = value.to(dtype).index_select(0, number)
        if self.border and num_pairs:  # the first and last pair of each row
            key[begin], key[end - 1] = 0, length - 1
            value[begin] = value[end - 1] = self.always_on
        return degree, key, value

    def _offsets(self, is_on: Tensor, inner_length: int) -> tuple[Tensor, Tensor, Tensor]:
        # Returns key - query of each diagonal that is on, ascending within each head; and for each
        # query, the index of its first diagonal in this list and the number of its diagonals.
        token = torch.arange(max(inner_length, 0), device=is_on.device)
        reach = self.num_values
        head, distance = is_on.nonzero(as_tuple=True)
        centre = 2 * reach * torch.arange(len(is_on), device=is_on.device)
        # The diagonals of all heads form one ascending list, in which the diagonals of a head lie
        # around the centre of the head.
        diagonal = torch.cat([centre[head] - distance, centre[head] + distance]).unique()
        first, last = (
            torch.searchsorted(diagonal, centre[:, None] + bound)
            for bound in (-token.clamp(max=reach - 1), (inner_length - token).clamp(max=reach)))
        return (diagonal + reach) % (2 * reach) - reach, first, last - first

    def _with_border(self, offset: Tensor, value: Tensor, first: Tensor, degree: Tensor,
                     length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The first and the last token attend to all tokens, and all tokens attend to them.
        token = torch.arange(length, device=offset.device)
        all_keys = len(offset) + 2
        offset = torch.cat([F.pad(offset, (1, 1)), token, token + 1 - length])
        value = F.pad(F.pad(value, (1, 1)), (0, 2 * length), value=self.always_on)
        first, degree = (F.pad(x, (1, 1))[:, :length] for x in (first, degree + 2))
        first[:, :1], first[:, -1:] = all_keys, all_keys + length
        degree[:, :1] = degree[:, -1:] = length
        return offset, value, first, degree

    def _inner_multiplicity(self, device: torch.device) -> Tensor:
        distance = torch.arange(self.num_values, device=device)
        return (self._inner_size - distance) * torch.where(distance == 0, 1, 2)


LAYOUTS = {layout.__name__: layout for layout in (FreeLayout, DiagonalLayout)}
