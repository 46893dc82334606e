"""Launches of kernels: shapes of tiles, and types of values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_CHANNELS = 256
_MIN_CHANNELS = 16
_BYTES_OF_A_TILE = 4096  # of rows gathered at once by the one warp that a program has
# More edges of narrow heads, or several rows of wide ones, take more registers than there are.
# Several rows are for Triton's interpreter, which they make faster.
_MAX_ROWS, _MAX_EDGES = 1, 32

# Annotations of numbers that Triton would pass in fewer bits; it reads them by name.
fp64, u64 = tl.float64, tl.uint64

# A kernel that programs are started of. These numbers differ from graph to graph, and Triton would
# compile it once more for those that 16 divides, and for 1.
kernel = triton.jit(do_not_specialize=[
    'num_rows', 'num_columns', 'num_tasks', 'num_parts', 'num_edges', 'bias_edge_stride',
    'bias_head_stride', 'gate_edge_stride', 'gate_head_stride'])

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}  # of sums


def width_of(channels: int) -> int:
    """Return the channels that a program holds of each node: a power of two."""
    return max(triton.next_power_of_2(channels), _MIN_CHANNELS)


class Tile(NamedTuple):
    """Size of a program: the edges of its rows, and the channels of what it gathers."""

    ROWS: int
    EDGES: int
    WIDTH: int  # channels, a power of two
    VALUE_WIDTH: int

    @classmethod
    def of(cls, dtype: torch.dtype, num_rows: int, num_edges: int, channels: int,
           value_channels: int = 0) -> Tile:
        """Return edges for as many as a row has on average, and as many rows as may be of what is
        left."""
        width, value_width = width_of(channels), width_of(value_channels)
        pairs = min(_MAX_EDGES, _BYTES_OF_A_TILE // (max(width, value_width) * dtype.itemsize))
        edges = min(pairs, max(4, triton.next_power_of_2(num_edges // max(num_rows, 1))))
        return cls(min(pairs // edges, _MAX_ROWS), edges, width, value_width)


def launch(function: triton.runtime.KernelInterface, grid: tuple[int, ...], *arguments,
           num_warps: int = 1, **constants) -> None:
    """Start a kernel on the device of its first argument. A program over rows is one warp: its sums
    need no barriers, and a processor of the GPU hides the waiting of one behind the work of others.
    """
    if 0 not in grid:
        with torch.cuda.device_of(arguments[0]):
            function[grid](*arguments, **constants, num_warps=num_warps)


def strides_of(values: Tensor | None) -> tuple[int, int]:
    """Return the strides from edge to edge and from head to head of ``[num_edges, heads or 1]``."""
    if values is None:
        return 0, 0
    return values.stride(0), values.stride(1) if values.size(1) > 1 else 0
