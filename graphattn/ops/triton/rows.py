"""Rows of a graph as tasks of programs. The longest rows come first, and long rows are cut into
parts."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.launch import TYPES, kernel, launch, width_of

EDGES_OF_A_PART, ROWS_OF_A_TILE = 2048, 64


class Tasks(NamedTuple):
    """Rows, or groups of rows, cut into the parts that programs compute. The largest rows come
    first.

    The device computes all tensors, and the host knows their sizes, so nothing synchronises.
    Because the host does not know how many tasks are needed, there are more tasks than needed; the
    programs of the others return at once.
    """

    order: Tensor  # the row, or group of rows, at each place
    last_task: Tensor  # cumulative number of tasks of all places
    place_of_task: Tensor  # above all places if a task is not needed
    num_rows: int
    rows_of_each: int

    @classmethod
    def of(cls, order: Tensor, parts: Tensor, max_more: int, num_rows: int,
           rows_of_each: int = 1) -> Tasks:
        """Return tasks for places with ``parts`` parts each. There are at most ``max_more`` more
        parts than places. Places with several parts come first."""
        last_task = parts.cumsum(0)
        tasks = torch.arange(order.numel() + max_more, device=order.device)
        place = torch.searchsorted(last_task, tasks, right=True, out_int32=True)
        return cls(order, last_task, place, num_rows, rows_of_each)

    @property
    def number(self) -> int:
        return self.place_of_task.numel()

    @property
    def max_long(self) -> int:
        """Return an upper bound of the number of places with several parts. These places and their
        parts come first."""
        return min(self.number - self.order.numel(), self.order.numel())

    def parts(self, heads: int, channels: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor for the partial sums of long rows, ``[heads, parts,
        channels]``."""
        most = (self.max_long + self.number - self.order.numel()) * self.rows_of_each
        return self.order.new_empty(heads, max(most, 1), channels, dtype=dtype)

    def add(self, parts: Tensor, out: Tensor) -> None:
        """Write the sums of the parts of each long row into ``out``,
        ``[rows, heads, channels]``."""
        _, heads, channels = out.shape
        launch(add_parts, (self.max_long * self.rows_of_each, heads), parts, out, self.order,
               self.last_task, parts.size(1), self.num_rows, HEADS=heads, CHANNELS=channels,
               WIDTH=width_of(channels), DTYPE=TYPES[parts.dtype], ROWS=self.rows_of_each)


class Rows(NamedTuple):
    """The edges of a graph grouped by query or by key, and the tasks into which kernels divide the
    rows."""

    indptr: Tensor  # where the edges of each row begin
    column: Tensor  # the node at the other end of each edge
    tasks: Tasks
    edges_of_a_part: int  # longer rows are cut

    @classmethod
    def of(cls, indptr: Tensor, column: Tensor, num_tiles: Tensor | None = None) -> Rows:
        """Return the rows of a graph, without the rows that kernels over tiles compute."""
        num_rows, num_edges = indptr.numel() - 1, column.numel()
        size = indptr.diff()
        if num_tiles is not None:
            is_left_out = (num_tiles > 0).repeat_interleave(
                ROWS_OF_A_TILE, output_size=ROWS_OF_A_TILE * num_tiles.numel())[:num_rows]
            size = size.masked_fill(is_left_out, 0)
        # Sorting numbers of two bytes takes a quarter of the passes that eight bytes take, and
        # still separates long rows.
        order = size.clamp(max=2**15 - 1).short().sort(descending=True, stable=True).indices
        parts = (size[order] + EDGES_OF_A_PART - 1).div(EDGES_OF_A_PART, rounding_mode='floor')
        parts = parts.clamp_(1)
        if num_tiles is not None:
            parts = parts.masked_fill_(is_left_out[order], 0)
        tasks = Tasks.of(order, parts, num_edges // EDGES_OF_A_PART, num_rows)
        return cls(indptr, column, tasks, EDGES_OF_A_PART)

    @property
    def num_rows(self) -> int:
        return self.tasks.num_rows

    @property
    def num_edges(self) -> int:
        return self.column.numel()

    def grid(self, heads: int, rows: int) -> tuple[int, int]:
        """Return the grid of programs for tasks of ``rows`` rows and one head. Programs of one head
        are consecutive, so that gathered vectors stay in the cache."""
        return triton.cdiv(self.tasks.number, rows), heads

    def pointers(self) -> tuple[Tensor | int, ...]:
        """Return the tensors of the edges and the tasks, which are the first arguments of every
        kernel over rows."""
        return self.indptr, self.column, *self.tasks[:4], self.tasks.number


@triton.jit
def edges_of_tasks(indptr, order, last_task, place_of_task, num_rows, num_tasks,
                   ROWS: tl.constexpr, PART: tl.constexpr):
    """Return six values for each task of this program: the row of the task, where its edges begin
    and end, the number of its part, whether the task is valid, and whether it is a part of a
    row."""
    task = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = tl.load(place_of_task + task, mask=task < num_tasks, other=num_rows)
    is_task = place < num_rows
    row = tl.load(order + place, mask=is_task, other=0)
    first = tl.load(last_task + place - 1, mask=is_task & (place > 0), other=0)
    is_part = is_task & (tl.load(last_task + place, mask=is_task, other=0) - first > 1)
    begin = tl.load(indptr + row, mask=is_task, other=0) + (task - first) * PART
    end = tl.load(indptr + row + 1, mask=is_task, other=0)
    end = tl.where(is_part, tl.minimum(end, begin + PART), end)
    return row, tl.where(is_task, begin, 0), end, task, is_task, is_part


@triton.jit
def gather(x, node, head, HEADS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, mask,
           DTYPE: tl.constexpr):
    """Load the vectors of nodes in a head, ``[nodes..., WIDTH]``, from ``x`` ``[nodes, HEADS,
    CHANNELS]``; 0 where masked or out of bounds."""
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
    """Store the vectors of nodes in a head, ``[nodes, WIDTH]``, in ``x`` ``[nodes, HEADS,
    CHANNELS]``."""
    channel = tl.arange(0, WIDTH)
    at = (node.to(tl.int64) * HEADS + head) * CHANNELS
    tl.store(x + at[:, None] + channel[None, :], values.to(x.dtype.element_ty),
             mask=mask[:, None] & (channel < CHANNELS)[None, :])


@triton.jit
def parts_of_a_row(order, last_task, num_rows, ROWS: tl.constexpr):
    """Return four values for the row of this program: the row, whether it has parts, where its
    first part begins, and where its last part ends. There is a program for each row of the long
    tasks, which have ``ROWS`` rows each. Parts are ``ROWS`` places apart."""
    place, number = tl.program_id(0) // ROWS, tl.program_id(0) % ROWS
    first = tl.load(last_task + place - 1, mask=place > 0, other=0)
    last = tl.load(last_task + place)
    row = tl.load(order + place) * ROWS + number
    return row, (last - first > 1) & (row < num_rows), first * ROWS + number, last * ROWS


@kernel
def add_parts(parts, out, order, last_task, num_parts, num_rows, HEADS: tl.constexpr,
              CHANNELS: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr,
              ROWS: tl.constexpr):
    """Kernel: sum the parts of each long row in a fixed order."""
    head = tl.program_id(1)
    row, has_parts, first, last = parts_of_a_row(order, last_task, num_rows, ROWS)
    if has_parts:
        channel = tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], DTYPE)
        for part in range(first, last, ROWS):
            total += tl.load(parts + (head * num_parts + part) * CHANNELS + channel,
                             mask=channel < CHANNELS, other=0)
        at = (row * HEADS + head) * CHANNELS + channel
        tl.store(out + at, total.to(out.dtype.element_ty), mask=channel < CHANNELS)
