"""Launches of Triton kernels, and the sizes and types that kernels take as constants."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_CHANNELS = 256
_MIN_CHANNELS = 16
_BYTES_OF_A_TILE = 2048  # of the vectors that the single warp of a program gathers at once
# Limits of the rows of a program and of the edges that it loads together. Above them, a program
# needs more registers than a GPU has. Tests in Triton's interpreter use more rows, which is faster.
_MAX_ROWS, _MAX_EDGES = 1, 32

# Annotations of scalars, which Triton reads by name. Without them, Triton would pass 32 bits.
fp64, u64 = tl.float64, tl.uint64

# Decorator of kernels. The named arguments differ between graphs. Triton would compile another
# version of a kernel whenever one of them is 1 or a multiple of 16.
kernel = triton.jit(do_not_specialize=[
    'num_rows', 'num_columns', 'num_tasks', 'num_parts', 'num_places', 'num_edges',
    'max_more', 'part', 'bias_edge_stride', 'bias_head_stride', 'gate_edge_stride',
    'gate_head_stride'])

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}  # of accumulation


def width_of(channels: int) -> int:
    # that a program loads
    return max(triton.next_power_of_2(channels), _MIN_CHANNELS)


class Tile(NamedTuple):
    """Numbers of rows, edges and channels that one program of a kernel over rows loads together."""

    ROWS: int
    EDGES: int  # of each row
    WIDTH: int  # channels of a query or key, rounded up to a power of two
    VALUE_WIDTH: int  # channels of a value, rounded up to a power of two

    @classmethod
    def of(cls, dtype: torch.dtype, num_rows: int, num_edges: int, channels: int,
           value_channels: int = 0) -> Tile:
        # fewer edges together for longer vectors, because registers are limited
        width, value_width = width_of(channels), width_of(value_channels)
        pairs = min(_MAX_EDGES, _BYTES_OF_A_TILE // (max(width, value_width) * dtype.itemsize))
        edges = min(pairs, max(4, triton.next_power_of_2(num_edges // max(num_rows, 1))))
        return cls(min(pairs // edges, _MAX_ROWS), edges, width, value_width)


def launch(function: triton.runtime.KernelInterface, grid: tuple[int, ...], *arguments,
           num_warps: int = 1, **constants) -> None:
    """Launch a kernel on the device of its first argument."""
    # A program of one warp needs no barriers, and while one waits for memory, others run.
    if 0 not in grid:
        with torch.cuda.device_of(arguments[0]):
            function[grid](*arguments, **constants, num_warps=num_warps)


def strides_of(values: Tensor | None) -> tuple[int, int]:
    """Return the strides over edges and heads, 0 for a single head and for None."""
    if values is None:
        return 0, 0
    return values.stride(0), values.stride(1) if values.size(1) > 1 else 0
