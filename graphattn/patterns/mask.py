"""Frozen masks, which were learned or pruned, and files of masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import torch
from torch import Tensor

from graphattn._checks import check_kind
from graphattn.graphs.pair_layout import LAYOUTS, DiagonalLayout, PairLayout
from graphattn.patterns.base import RowPattern
from graphattn.patterns.layouts import diagonals, grid, positions
from graphattn.utils.files import as_path, write_whole
from graphattn.utils.reading import check_arrays
from graphattn.utils.schema import Array, check_schema

SCHEMA = {'layout': Array('U', ()), 'size': Array('i', ()), 'border': Array('b', ()),
          'values': object}


@dataclass(frozen=True, repr=False)
class Mask(RowPattern):
    """The pairs of tokens that are on in the mask of one head.

    The layout assigns each pair of tokens to a value, also in sequences that are shorter than the
    mask. The edges of a :class:`graphattn.graphs.pair_layout.DiagonalLayout` are listed in time
    proportional to the number of edges; other layouts need time proportional to the number of
    pairs.

    Args:
        layout (PairLayout): The assignment of pairs to values.
        values (str or Tensor): ``'1'`` for values that are on and ``'0'`` for values that are off,
            or bool ``[layout.num_values]``, which is converted to a str.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The number of values differs from ``layout.num_values``. :meth:`build` also
            raises it if the numbers of keys and queries differ, or if the sequence is longer than
            the mask.

    Source: SparseBERT, Sec. 4.1: "the generated mask is returned finally".

    Example:
        >>> from graphattn.graphs.pair_layout import DiagonalLayout
        >>> from graphattn.patterns import Mask
        >>> Mask(DiagonalLayout(6), '0100').build(6).to_mask().int()
        tensor([[1, 1, 1, 1, 1, 1],
                [1, 0, 1, 0, 0, 1],
                [1, 1, 0, 1, 0, 1],
                [1, 0, 1, 0, 1, 1],
                [1, 0, 0, 1, 0, 1],
                [1, 1, 1, 1, 1, 1]], dtype=torch.int32)
    """

    layout: PairLayout
    values: str

    def __post_init__(self):
        check_kind('layout', self.layout, PairLayout)
        is_vector = isinstance(self.values, Tensor) and self.values.dim() == 1
        if is_vector and self.values.dtype == torch.bool:
            digits = self.values.cpu().numpy().astype(np.uint8) + ord('0')
            object.__setattr__(self, 'values', digits.tobytes().decode())
        if not isinstance(self.values, str):
            raise TypeError(f"'values' must be a str of 0 and 1 or a bool Tensor [num_values] (got "
                            f"{type(self.values).__name__})")
        if len(self.values) != self.layout.num_values or self.values.strip('01'):
            raise ValueError(f"'values' must be {self.layout.num_values} characters, each 0 or 1, "
                             f"for {self.layout} (got {len(self.values)} characters, "
                             f"{self.values[:20]!r})")

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        length = self._length(num_queries, num_keys)
        if isinstance(self.layout, DiagonalLayout):
            return self._diagonals(queries, length)
        query, key = positions(queries)[:, None], torch.arange(length)
        row, key = self._is_on()[self.layout.value_of(query, key, length)].nonzero().t()
        return torch.stack([key, row + queries.start])

    def contains(self, edges: Tensor, num_queries: int, num_keys: int,
                 generator: torch.Generator | None) -> Tensor:
        key, query = edges
        value = self.layout.value_of(query, key, self._length(num_queries, num_keys))
        return self._is_on()[value]

    @property
    def max_tokens(self) -> int | None:
        return self.layout.max_length

    def _length(self, num_queries: int, num_keys: int) -> int:
        if num_keys != num_queries:
            raise ValueError(f"'num_keys' must equal 'num_queries' for a mask (got "
                             f"num_keys={num_keys} and num_queries={num_queries})")
        self.layout.check_length(num_queries)
        return num_queries

    def _is_on(self) -> Tensor:
        # the last two: pairs that are always on, and pairs that are always off
        values = np.frombuffer(f'{self.values}10'.encode(), dtype=np.uint8) == ord('1')
        return torch.as_tensor(values)

    def _diagonals(self, queries: range, length: int) -> Tensor:
        distance = [distance for distance, value in enumerate(self.values) if value == '1']
        offset = torch.tensor(sorted({*distance, *(-step for step in distance)}), dtype=torch.long)
        if not self.layout.border:
            return diagonals(offset, queries, length)
        ends = sorted({0, length - 1})
        inner = range(max(queries.start, 1) - 1, min(queries.stop, length - 1) - 1)
        inside = diagonals(offset, inner, length - 2) + 1
        own_ends = torch.tensor([end for end in ends if end in queries], dtype=torch.long)
        return torch.cat([inside, grid(torch.tensor(ends), positions(queries)),
                          grid(torch.arange(length), own_ends)], dim=1)


def save_masks(path: str | PathLike, masks: Sequence[Mask]) -> None:
    """Write the masks of the heads of a model to a file. The file is replaced atomically.

    Args:
        path (str or PathLike): The file, which must end in ``.npz``.
        masks (sequence of Mask): One mask per head, all with the same layout.

    Raises:
        TypeError: Something in ``masks`` is not a Mask.
        ValueError: There are no masks, their layouts differ, or ``path`` does not end in ``.npz``.
    """
    path = as_path('path', path)
    check_kind('masks', masks, Sequence)
    if path.suffix != '.npz':
        raise ValueError(f"'path' must end with .npz (got {str(path)!r})")
    for mask in masks:
        if not isinstance(mask, Mask):
            raise TypeError(f"'masks' must contain only Masks (got {type(mask).__name__})")
    layouts = {mask.layout for mask in masks}
    if len(layouts) != 1:
        raise ValueError(f"'masks' must have one Mask for each head, all with the same layout (got "
                         f"{len(masks)} masks with {len(layouts)} layouts)")
    layout = masks[0].layout
    values = np.array([list(mask.values) for mask in masks]).reshape(len(masks), -1) == '1'
    write_whole(path, lambda file: np.savez_compressed(
        file, layout=type(layout).__name__, size=layout.size, border=layout.border, values=values))


def load_masks(path: str | PathLike) -> tuple[Mask, ...]:
    """Read the masks that :func:`save_masks` wrote, one for each head.

    Args:
        path (str or PathLike): The file. Nothing in it is executed.

    Returns:
        tuple of Mask.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file does not contain masks, or is damaged.
    """
    path = as_path('path', path)
    if not path.is_file():
        raise FileNotFoundError(f"'path' must be an existing file of masks (got {str(path)!r}, "
                                f"which does not exist)")
    try:
        check_arrays(path)
        with np.load(path, allow_pickle=False) as file:
            fields = {name: file[name] for name in file.files}
        check_schema(fields, SCHEMA, 'its fields')
        name, size, border = (fields[part].item() for part in ('layout', 'size', 'border'))
        check_schema(name, tuple(LAYOUTS), "'layout'")
        layout = LAYOUTS[name](size, border)
        values = Array('b', ('heads', layout.num_values))
        check_schema({'values': fields['values']}, {'values': values}, 'its fields')
        if not len(fields['values']):
            raise ValueError("'values' must have at least one head (got none)")
        return tuple(Mask(layout, torch.from_numpy(head)) for head in fields['values'])
    except Exception as error:  # damaged files raise anything
        raise ValueError(f"'path' must be a file that save_masks wrote (got {str(path)!r}: "
                         f"{error})") from error
