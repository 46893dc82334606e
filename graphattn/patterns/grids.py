"""Windows over grids of two and more dimensions: images, videos, volumes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn._checks import check_bool, check_size
from graphattn.patterns.base import MAX_NUMBER, RowPattern
from graphattn.patterns.layouts import positions


@dataclass(frozen=True, repr=False)
class _GridPattern(RowPattern):
    """Base class of patterns with a window along each axis of a grid."""

    # Tokens are numbered as in Tensor.flatten: the coordinate of the last axis changes fastest.
    window: int | tuple[int, ...]
    inner: tuple[int, ...]

    def __post_init__(self):
        if not isinstance(self.inner, tuple | list):
            raise TypeError(f"'inner' must be a tuple of ints (got {type(self.inner).__name__})")
        for size in self.inner:
            check_size('inner', size, 1, MAX_NUMBER)
        object.__setattr__(self, 'inner', tuple(map(int, self.inner)))
        self._check_axes('window', at_least=1)

    def _check_axes(self, name: str, at_least: int | None) -> None:
        # one value for all axes of the grid, or one value for each axis
        value = getattr(self, name)
        values = tuple(value) if isinstance(value, tuple | list) else (value,) * self._num_axes
        if len(values) != self._num_axes:
            raise ValueError(f"'{name}' must be one int, or {self._num_axes} ints, for the first "
                             f"axis and the axes of 'inner' (got {value})")
        for each in values:
            if at_least is None:
                check_bool(**{name: each})
            else:
                check_size(name, each, at_least, MAX_NUMBER)
        values = tuple(map(bool if at_least is None else int, values))
        object.__setattr__(self, name, values[0] if len(set(values)) == 1 else values)

    def _of_axes(self, name: str) -> tuple[int, ...]:
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * self._num_axes

    @property
    def _num_axes(self) -> int:
        return len(self.inner) + 1

    def _axis(self, number: int, coordinate: Tensor, length: int) -> tuple[Tensor, Tensor]:
        # Of one axis: the coordinates that each query attends to, int64 [num_queries, window], and
        # whether they are in the grid, bool.
        raise NotImplementedError

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        lengths = (-(-num_keys // math.prod(self.inner)), *self.inner)
        query = positions(queries)
        key, is_key, stride = query.new_zeros(len(query), 1), None, math.prod(self.inner)
        for number, length in enumerate(lengths):
            coordinate = query // stride % length if number else query // stride
            along, is_inside = self._axis(number, coordinate, length)
            key = (key.unsqueeze(2) + along.unsqueeze(1) * stride).flatten(1)
            is_key = is_inside if is_key is None else (
                is_key.unsqueeze(2) & is_inside.unsqueeze(1)).flatten(1)
            stride //= lengths[number + 1] if number + 1 < len(lengths) else 1
        is_key &= key < num_keys  # the last row of the first axis may be incomplete
        row, column = is_key.nonzero().unbind(1)
        return torch.stack([key[row, column], query[row]])


@dataclass(frozen=True, repr=False)
class Neighborhood(_GridPattern):
    r"""Neighborhood attention: each query attends to the nearest keys of a grid.

    Along each axis, a query at coordinate c attends to ``window`` keys around it. At the borders
    the window moves inwards, so that every query has the same number of keys:

    .. math::
        s(c) \le k < s(c) + w, \qquad
        s(c) = \min(\max(c - \lfloor w / 2 \rfloor, 0), L - w)

    on an axis of length L. With dilation d, the window has only coordinates that equal c modulo d.
    On a causal axis, the window is ``c - w + 1, ..., c``; it is shorter at the beginning of the
    axis.

    Args:
        window (int or tuple): Number w of keys: one value for all axes, or one for each axis.
        inner (tuple of int): Lengths of all axes but the first: ``(64,)`` for images of width 64,
            ``(32, 32)`` for videos with frames of 32 x 32. The length of the first axis follows
            from the length of the sequence.
        dilation (int or tuple): Distance d between neighbouring keys of a window: one value for all
            axes, or one for each axis.
        causal (bool or tuple): Whether keys after the query are excluded: one value for all axes,
            or one for each axis.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A value is below 1, the number of values is not the number of axes, or an axis
            is shorter than ``window * dilation``. The first axis is checked in :meth:`build`.

    Source: Hassani et al., "Neighborhood Attention Transformer" (2023), Eq. 1, and "Dilated
    Neighborhood Attention Transformer" (2022), Sec. 3.2; causal axes as in NATTEN.

    Example:
        >>> from graphattn.patterns import Neighborhood
        >>> graph = Neighborhood(3, inner=(4,)).build(16)  # an image of 4 x 4
        >>> graph.to_mask()[5].view(4, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 0],
                [0, 0, 0, 0]], dtype=torch.int32)
        >>> graph.in_degree().unique()
        tensor([9])
    """

    dilation: int | tuple[int, ...] = 1
    causal: bool | tuple[bool, ...] = False

    def __post_init__(self):
        super().__post_init__()
        self._check_axes('dilation', at_least=1)
        self._check_axes('causal', at_least=None)
        for length, window, dilation in zip(self.inner, self._of_axes('window')[1:],
                                            self._of_axes('dilation')[1:]):
            if window * dilation > length:
                raise ValueError(f"'window' times 'dilation' must be at most {length}, the length "
                                 f"of the axis (got window={window} and dilation={dilation})")

    @property
    def min_tokens(self) -> int:
        rows = self._of_axes('window')[0] * self._of_axes('dilation')[0]
        return math.prod(self.inner) * (rows - 1) + 1

    def _axis(self, number: int, coordinate: Tensor, length: int) -> tuple[Tensor, Tensor]:
        window, dilation = self._of_axes('window')[number], self._of_axes('dilation')[number]
        if window * dilation > length:
            raise ValueError(f"'window' times 'dilation' must be at most {length}, the length of "
                             f"the first axis (got window={window} and dilation={dilation})")
        phase, place = coordinate % dilation, coordinate // dilation
        if self._of_axes('causal')[number]:
            start = place - window + 1
        else:
            num_alike = (length - phase + dilation - 1) // dilation
            start = (place - window // 2).clamp(min=0).minimum(num_alike - window)
        place = start.unsqueeze(1) + torch.arange(window)
        key = place * dilation + phase.unsqueeze(1)
        return key, (place >= 0) & (key < length)


@dataclass(frozen=True, repr=False)
class ShiftedWindows(_GridPattern):
    r"""Windows of Swin Transformers: a query attends to the keys of its box of the grid.

    Along each axis, a query at c and a key at k are in one window if

    .. math::
        \lfloor (c - s) / w \rfloor = \lfloor (k - s) / w \rfloor

    for a shift s. Layers of a Swin Transformer alternate between s = 0 and half a window. The
    cyclic shift and the mask of a Swin Transformer lead to the same partition, with smaller windows
    at the borders.

    Args:
        window (int or tuple): Length w of a box: one value for all axes, or one for each axis.
        inner (tuple of int): Lengths of all axes but the first, as in :class:`Neighborhood`.
        shift (int or tuple): The shift s: one value for all axes, or one for each axis.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A value is too small, the number of values is not the number of axes, or a shift
            is not smaller than its window.

    Source: Liu et al., "Swin Transformer" (2021), Sec. 3.2, Figures 2 and 4.

    Example:
        >>> from graphattn.patterns import ShiftedWindows
        >>> ShiftedWindows(2, inner=(4,), shift=1).build(16).to_mask()[5].view(4, 4).int()
        tensor([[0, 0, 0, 0],
                [0, 1, 1, 0],
                [0, 1, 1, 0],
                [0, 0, 0, 0]], dtype=torch.int32)
    """

    shift: int | tuple[int, ...] = 0

    def __post_init__(self):
        super().__post_init__()
        self._check_axes('shift', at_least=0)
        if any(shift >= window for shift, window in zip(
                self._of_axes('shift'), self._of_axes('window'))):
            raise ValueError(f"'shift' must be smaller than 'window' (got shift={self.shift} and "
                             f"window={self.window})")

    def _axis(self, number: int, coordinate: Tensor, length: int) -> tuple[Tensor, Tensor]:
        window, shift = self._of_axes('window')[number], self._of_axes('shift')[number]
        start = (coordinate - shift).div(window, rounding_mode='floor') * window + shift
        key = start.clamp(min=0).unsqueeze(1) + torch.arange(min(window, length))
        return key, (key < start.unsqueeze(1) + window) & (key < length)
