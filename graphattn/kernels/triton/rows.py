"""Who computes which edges: the rows of a graph as tasks, the longest first, long ones in parts."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from graphattn.kernels.triton.launch import kernel

EDGES_OF_A_PART, ROWS_OF_A_TILE = 2048, 64


class Rows(NamedTuple):
    """Rows of edges, those of each query or of each key, and the tasks they are cut into.

    All is made on the device from the number of edges alone, so that nobody waits for it: there are
    some tasks more than needed, which end at once.
    """

    indptr: Tensor  # where each row's edges begin
    column: Tensor  # the node at the other end of each edge
    order: Tensor  # rows, those with the most edges first
    last_task: Tensor  # of each row in this order: the number of tasks up to its last
    place_of_task: Tensor  # the row in this order that each task is of
    edges_of_a_part: int  # rows with more are cut

    @classmethod
    def of(cls, indptr: Tensor, column: Tensor, is_tiled: Tensor | None = None) -> Rows:
        """All rows, but for those that are tiled, whom others compute."""
        num_rows, num_edges = indptr.numel() - 1, column.numel()
        num_long = num_edges // EDGES_OF_A_PART  # bounds the number of long rows
        size = indptr.diff()
        if is_tiled is not None:
            is_left_out = is_tiled.repeat_interleave(
                ROWS_OF_A_TILE, output_size=ROWS_OF_A_TILE * is_tiled.numel())[:num_rows]
            size = size.masked_fill(is_left_out, 0)
        # Two bytes take a quarter of the passes of eight, and tell long rows from others.
        order = size.clamp(max=2**15 - 1).short().sort(descending=True, stable=True).indices
        parts = (size[order] + EDGES_OF_A_PART - 1).div(EDGES_OF_A_PART, rounding_mode='floor')
        parts = parts.clamp_(1)
        last_task = parts.cumsum(0)
        tasks = torch.arange(num_rows + num_long, device=indptr.device)
        place = torch.searchsorted(last_task, tasks, right=True, out_int32=True)
        if is_tiled is not None:
            is_no_task = F.pad(is_left_out[order], (0, 1), value=True)[place]
            place = place.masked_fill(is_no_task, num_rows)
        return cls(indptr, column, order, last_task, place, EDGES_OF_A_PART)

    @property
    def num_rows(self) -> int:
        return self.order.numel()

    @property
    def num_edges(self) -> int:
        return self.column.numel()

    @property
    def most_long(self) -> int:
        """Bounds the number of rows that are in parts; they come first, and so do their parts."""
        return min(self.num_edges // self.edges_of_a_part, self.num_rows)

    def grid(self, heads: int, rows: int) -> tuple[int, int]:
        """Programs for ``rows`` tasks of one head each; those of one head follow one another, so
        that what they gather stays in the cache."""
        return triton.cdiv(self.place_of_task.numel(), rows), heads

    def pointers(self) -> tuple[Tensor | int, ...]:
        """The arguments that every kernel over rows begins with."""
        return (*self[:5], self.num_rows, self.place_of_task.numel())

    def parts(self, heads: int, channels: int, dtype: torch.dtype) -> Tensor:
        """Memory for what each part of a long row adds: ``[heads, parts, channels]``."""
        most = self.most_long + self.num_edges // self.edges_of_a_part
        return self.order.new_empty(heads, max(most, 1), channels, dtype=dtype)


@triton.jit
def edges_of_tasks(indptr, order, last_task, place_of_task, num_rows, num_tasks,
                   ROWS: tl.constexpr, PART: tl.constexpr):
    """Of the tasks of this program: rows, where their edges begin and end, the number of the part,
    and whether the task is one and whether it is a part."""
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
    """Rows ``[nodes..., WIDTH]`` of ``[nodes, HEADS, CHANNELS]``; 0 where masked and beyond."""
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
    """Stores rows ``[nodes, WIDTH]`` into ``[nodes, HEADS, CHANNELS]``."""
    channel = tl.arange(0, WIDTH)
    at = (node.to(tl.int64) * HEADS + head) * CHANNELS
    tl.store(x + at[:, None] + channel[None, :], values.to(x.dtype.element_ty),
             mask=mask[:, None] & (channel < CHANNELS)[None, :])


@kernel
def add_parts(parts, out, order, last_task, num_parts, HEADS: tl.constexpr,
              CHANNELS: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Sums what the parts of each long row have added, always in the same order."""
    place, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(last_task + place - 1, mask=place > 0, other=0)
    last = tl.load(last_task + place)
    if last - first > 1:
        channel = tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], DTYPE)
        for part in range(first, last):
            total += tl.load(parts + (head * num_parts + part) * CHANNELS + channel,
                             mask=channel < CHANNELS, other=0)
        at = (tl.load(order + place) * HEADS + head) * CHANNELS + channel
        tl.store(out + at, total.to(out.dtype.element_ty), mask=channel < CHANNELS)
