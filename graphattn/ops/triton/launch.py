"""Launches of kernels, with the shapes of tiles and the types of values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_CHANNELS = 256
_MIN_CHANNELS = 16
_BYTES_OF_A_TILE = 2048  # of rows that the single warp of a program gathers at once
# More edges of narrow heads, or several rows of wide heads, would need more registers than a GPU
# has. Programs have several rows only in Triton's interpreter, where this is faster.
_MAX_ROWS, _MAX_EDGES = 1, 32

# Annotations of scalars that Triton would otherwise pass in fewer bits. Triton reads annotations by
# name.
fp64, u64 = tl.float64, tl.uint64

# Decorator of kernels. These sizes differ between graphs, and Triton would otherwise compile
# specialised versions for 1 and for multiples of 16.
kernel = triton.jit(do_not_specialize=[
    'num_rows', 'num_columns', 'num_tasks', 'num_parts', 'num_places', 'num_edges',
    'max_more', 'part', 'bias_edge_stride', 'bias_head_stride', 'gate_edge_stride',
    'gate_head_stride'])

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}  # of sums


def width_of(channels: int) -> int:
    """Return the number of channels of a node that a program loads: ``channels`` rounded up to a
    power of two."""
    return max(triton.next_power_of_2(channels), _MIN_CHANNELS)


class Tile(NamedTuple):
    """Number of rows, of edges of a row, and of channels that one program of a kernel loads
    together."""

    ROWS: int
    EDGES: int
    WIDTH: int  # channels, a power of two
    VALUE_WIDTH: int

    @classmethod
    def of(cls, dtype: torch.dtype, num_rows: int, num_edges: int, channels: int,
           value_channels: int = 0) -> Tile:
        """Return a tile. The average length of a row decides the number of edges, and the remaining
        registers decide the number of rows."""
        width, value_width = width_of(channels), width_of(value_channels)
        pairs = min(_MAX_EDGES, _BYTES_OF_A_TILE // (max(width, value_width) * dtype.itemsize))
        edges = min(pairs, max(4, triton.next_power_of_2(num_edges // max(num_rows, 1))))
        return cls(min(pairs // edges, _MAX_ROWS), edges, width, value_width)


def launch(function: triton.runtime.KernelInterface, grid: tuple[int, ...], *arguments,
           num_warps: int = 1, **constants) -> None:
    """Launch a kernel on the device of its first argument. A program over rows is one warp. So its
    sums need no barriers, and while one program waits for memory, a multiprocessor runs others.
    """
    if 0 not in grid:
        with torch.cuda.device_of(arguments[0]):
            function[grid](*arguments, **constants, num_warps=num_warps)


def strides_of(values: Tensor | None) -> tuple[int, int]:
    """Return the strides of ``values`` ``[num_edges, heads or 1]`` over edges and over heads."""
    if values is None:
        return 0, 0
    return values.stride(0), values.stride(1) if values.size(1) > 1 else 0
