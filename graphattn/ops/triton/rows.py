"""Division of the rows of a graph, its edges by query or by key, into tasks.

A long row is cut into parts. The first part has the number of the row, *further parts* have numbers
above. Programs write sums of parts into workspaces, and a second kernel adds them up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.launch import TYPES, kernel, launch, width_of
from graphattn.ops.triton.plans import Arriving, once_per_graph

EDGES_OF_A_PART, ROWS_OF_A_TILE = 1024, 64
_NO_PARTS = 2**30  # edges of a part if no row is cut
UNCUT_PARTS = 2  # rows of no more than this number of parts stay whole
_PLACES = 1024  # rows that a program of cut_rows cuts
_OF_A_TILE = tl.constexpr(ROWS_OF_A_TILE)  # which kernels can read


class Tasks(NamedTuple):
    """Division of places, rows or groups of consecutive rows, into tasks."""

    # The first tasks are the first parts of all places. The GPU counts the further parts, and the
    # host launches programs for an upper bound of their number, which return at once without a
    # part.
    more: Tensor  # for each place, first number and count of its further parts, int32 [2, places]
    place_of_more: Tensor  # place of each further part, int32 [max_more + 1]; see put_more
    num_places: int
    max_more: int  # upper bound of the number of further parts
    rows_of_each: int  # number of rows of a place
    end_of_more: Arriving | None  # num_places plus the number of further parts; None if max_more=0

    @classmethod
    def of(cls, num_places: int, max_more: int, like: Tensor, cut: Callable[[Tensor, Tensor], None],
           rows_of_each: int = 1) -> Tasks:
        """Divide places into tasks; ``cut(more, place_of_more)`` launches a kernel that fills
        these."""
        if max_more == 0 or num_places == 0:
            nothing = like.new_empty(1, dtype=torch.int32)
            return cls(nothing, nothing, num_places, 0, rows_of_each, None)
        more = like.new_empty(2, num_places, dtype=torch.int32)
        place_of_more = like.new_full((max_more + 1,), num_places, dtype=torch.int32)
        cut(more, place_of_more)
        return cls(more, place_of_more, num_places, max_more, rows_of_each,
                   Arriving(place_of_more[-1]))

    @property
    def most(self) -> int:
        # max_more until the number of further parts has arrived on the host
        end = None if self.end_of_more is None else self.end_of_more.now()
        return self.max_more if end is None else end - self.num_places

    @property
    def number(self) -> int:
        return self.num_places + self.most

    def parts(self, heads: int, channels: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised workspace for the sums of parts, ``[heads, parts, channels]``."""
        # further parts come first, then the first parts of places that were cut
        number = max(self.max_more and 2 * self.max_more * self.rows_of_each, 1)
        return self.more.new_empty(heads, number, channels, dtype=dtype)

    def add(self, parts: Tensor, out: Tensor, num_tiles: Tensor | None = None) -> None:
        """Write the sum over the parts of each long row to ``out``, ``[num_rows, heads,
        channels]``."""
        num_rows, heads, channels = out.shape
        launch(add_parts, (self.most * self.rows_of_each, heads), parts, out, self.more,
               self.place_of_more, num_tiles, parts.size(1), num_rows, self.max_more, HEADS=heads,
               CHANNELS=channels, WIDTH=width_of(channels), DTYPE=TYPES[parts.dtype],
               ROWS=self.rows_of_each)


class Rows(NamedTuple):
    """The edges of a graph grouped by query or by key, and the tasks that kernels compute."""

    indptr: Tensor  # where the edges of each row begin
    column: Tensor  # the node at the other end of each edge
    tasks: Tasks
    edges_of_a_part: int  # longer rows are cut into parts of this number of edges
    num_tiles: Tensor | None = None  # for each 64 rows; above 0 if kernels over tiles compute them

    @classmethod
    def of(cls, indptr: Tensor, column: Tensor, num_columns: int) -> Rows:
        # A row has at most one edge for each column. Cutting takes several launches in every pass,
        # which is more than a small graph takes.
        if num_columns <= UNCUT_PARTS * EDGES_OF_A_PART:
            return cls(indptr, column, Tasks.of(indptr.numel() - 1, 0, indptr, None), _NO_PARTS)
        size = EDGES_OF_A_PART
        tasks = once_per_graph(('rows', size), indptr, column,
                               lambda: _tasks(indptr, column.numel(), size))
        return cls(indptr, column, tasks, size if tasks.max_more else _NO_PARTS)

    @property
    def num_rows(self) -> int:
        return self.tasks.num_places

    @property
    def num_edges(self) -> int:
        return self.column.numel()

    def grid(self, heads: int, rows: int) -> tuple[int, int]:
        # programs of a head are consecutive, so that the vectors that they gather stay in the cache
        return triton.cdiv(self.tasks.number, rows), heads

    def pointers(self) -> tuple[Tensor | int | None, ...]:
        """Return the first arguments of kernels, from ``indptr`` to ``part``."""
        tasks = self.tasks
        return (self.indptr, self.column, tasks.more, tasks.place_of_more, self.num_tiles,
                self.num_rows, tasks.number, tasks.max_more, self.edges_of_a_part)

    def add(self, parts: Tensor, out: Tensor) -> None:
        self.tasks.add(parts, out, self.num_tiles)


def _tasks(indptr: Tensor, num_edges: int, edges_of_a_part: int) -> Tasks:
    num_rows, max_more = indptr.numel() - 1, num_edges // edges_of_a_part

    def cut(more: Tensor, place_of_more: Tensor) -> None:
        launch(cut_rows, (triton.cdiv(num_rows, _PLACES),), indptr, more, place_of_more, num_rows,
               max_more, edges_of_a_part, PLACES=_PLACES, num_warps=4)

    return Tasks.of(num_rows, max_more, indptr, cut)


@kernel
def cut_rows(indptr, more, place_of_more, num_rows, max_more, part, PLACES: tl.constexpr):
    """Kernel: cut long rows into parts of ``part`` edges."""
    row = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    begin = tl.load(indptr + row, mask=row < num_rows, other=0)
    end = tl.load(indptr + row + 1, mask=row < num_rows, other=0)
    put_more(tl.where(begin < end, (end - begin - 1) // part, 0).to(tl.int32), row, more,
             place_of_more, num_rows, max_more)


@triton.jit
def put_more(count, place, more, place_of_more, num_places, max_more):
    """Give numbers to the further parts of some places, which have ``count`` each."""
    first = tl.cumsum(count, axis=0) - count
    # The counter is the last element of place_of_more, from num_places on. Numbers may differ
    # between runs, but the parts of a place are consecutive, so sums keep their order.
    first += tl.atomic_add(place_of_more + max_more, tl.sum(count, axis=0)) - num_places
    tl.store(more + place, first, mask=place < num_places)
    tl.store(more + num_places + place, count, mask=place < num_places)
    for number in range(0, tl.max(count, axis=0)):
        tl.store(place_of_more + first + number, place.to(tl.int32), mask=number < count)


@triton.jit
def edges_of_tasks(indptr, more, row_of_more, num_tiles, num_rows, num_tasks, max_more, part,
                   ROWS: tl.constexpr):
    """Return row, first and last edge, slot of its sums, and whether each task exists and is a
    part."""
    task = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    number = task - num_rows  # of a further part
    is_more = number >= 0
    row = tl.load(row_of_more + number, mask=is_more & (task < num_tasks), other=num_rows)
    row = tl.where(is_more, row.to(tl.int64), task)
    is_task = row < num_rows
    if num_tiles is not None:
        is_task &= tl.load(num_tiles + row // _OF_A_TILE, mask=is_task, other=0) == 0
    begin = tl.load(indptr + row, mask=is_task, other=0)
    end = tl.load(indptr + row + 1, mask=is_task, other=0)
    is_part = is_task & (end - begin > part)
    before = tl.load(more + row, mask=is_part, other=0)
    begin += tl.where(is_more & is_part, number - before + 1, 0) * part
    end = tl.where(is_part, tl.minimum(end, begin + part), end)
    return row, begin, end, tl.where(is_more, number, max_more + before), is_task, is_part


@triton.jit
def gather(x, node, head, HEADS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, mask,
           DTYPE: tl.constexpr):
    """Return ``x[node, head]``, ``[nodes..., WIDTH]``, 0 outside ``mask`` and ``CHANNELS``."""
    channel = tl.arange(0, WIDTH)
    at = (node.to(tl.int64) * HEADS + head) * CHANNELS
    if len(node.shape) == 2:
        pointers = x + at[:, :, None] + channel[None, None, :]
        inside = mask[:, :, None] & (channel < CHANNELS)[None, None, :]
    else:
        pointers = x + at[:, None] + channel[None, :]
        inside = mask[:, None] & (channel < CHANNELS)[None, :]
    return tl.load(pointers, mask=inside, other=0).to(DTYPE)


@triton.jit
def put(x, node, head, HEADS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, mask,
        values):
    """Write ``values`` ``[nodes, WIDTH]`` to ``x[node, head]`` if ``mask`` is true."""
    channel = tl.arange(0, WIDTH)
    at = (node.to(tl.int64) * HEADS + head) * CHANNELS
    tl.store(x + at[:, None] + channel[None, :], values.to(x.dtype.element_ty),
             mask=mask[:, None] & (channel < CHANNELS)[None, :])


@triton.jit
def parts_of_a_row(more, place_of_more, num_tiles, num_rows, ROWS: tl.constexpr):
    """Return the row whose parts this program adds up, whether it does, and its further parts."""
    number, in_place = tl.program_id(0) // ROWS, tl.program_id(0) % ROWS
    place, num_places = tl.load(place_of_more + number).to(tl.int64), tl.cdiv(num_rows, ROWS)
    row = place * ROWS + in_place
    is_row = row < num_rows
    first = tl.load(more + place, mask=is_row, other=0)
    last = first + tl.load(more + num_places + place, mask=is_row, other=0)
    if num_tiles is not None:
        is_row &= tl.load(num_tiles + row // _OF_A_TILE, mask=is_row, other=0) == 0
    # only the program of the first further part of a row adds
    return row, is_row & (number == first), first, last


@triton.jit
def slot_of_part(number, first, max_more, ROWS: tl.constexpr):
    """Return where the sums of a part are in the workspace of :meth:`Tasks.parts`."""
    # first: number of the second part of the row; ``first - 1`` stands for the first part
    slot = tl.where(number < first, max_more + first, number)
    return slot * ROWS + tl.program_id(0) % ROWS


@kernel
def add_parts(parts, out, more, place_of_more, num_tiles, num_parts, num_rows, max_more,
              HEADS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
              DTYPE: tl.constexpr, ROWS: tl.constexpr):
    """Kernel: write the sum over the parts of each long row to ``out``, in a fixed order."""
    head = tl.program_id(1)
    row, has_parts, first, last = parts_of_a_row(more, place_of_more, num_tiles, num_rows, ROWS)
    if has_parts:
        channel = tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], DTYPE)
        for number in range(first - 1, last):
            slot = head * num_parts + slot_of_part(number, first, max_more, ROWS)
            total += tl.load(parts + slot * CHANNELS + channel, mask=channel < CHANNELS, other=0)
        at = (row * HEADS + head) * CHANNELS + channel
        tl.store(out + at, total.to(out.dtype.element_ty), mask=channel < CHANNELS)
