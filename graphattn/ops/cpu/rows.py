"""Copies, sums and products of rows of arrays, computed in SIMD vectors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from graphattn.ops.cpu.jit import jit, jit_inline
from graphattn.ops.cpu.simd import (
    LANES,
    first_lanes,
    load,
    load_some,
    multiply,
    multiply_add,
    prefetch,
    splat,
    store,
    store_some,
    sum_lanes,
)

HUGE = 1 << 22  # bytes


def new_rows(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised CPU tensor, in huge pages and aligned to cache lines if it is
    large."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE:
        return torch.empty(shape, dtype=dtype)
    # numpy requests pages of 2 MiB for arrays of 4 MiB or more, torch does not. With pages of 4
    # KiB, the first access to 70 MB takes four times as long, and accesses to distant rows miss the
    # TLB. Arrays of numpy begin 16 bytes after a cache line.
    space = np.empty(num_bytes + 64, np.uint8)
    skip = -space.ctypes.data % 64
    storage = torch.from_numpy(space[skip:]).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # not a view, so that it is writable


def node_rows(dtype: torch.dtype, *tensors: Tensor) -> list[np.ndarray]:
    """Return tensors ``[nodes, heads, channels]`` as arrays ``[nodes * heads, channels]``."""
    # without a copy if possible
    rows = [x.detach() if x.dtype == dtype else x.detach().to(dtype) for x in tensors]
    return [x.contiguous().numpy().reshape(x.size(0) * x.size(1), x.size(2)) for x in rows]


def edge_rows(x: Tensor, dtype: torch.dtype) -> np.ndarray:
    return x.detach().to(dtype).contiguous().numpy()


@jit_inline
def whole_vectors(n):
    """Return ``n`` rounded up to whole SIMD vectors, which take less time than single values."""
    return (n + LANES - 1) // LANES * LANES


@jit
def consecutive(n, like):
    numbers = np.empty(n, like.dtype)
    for e in range(n):
        numbers[e] = e
    return numbers


@jit_inline
def prefetch_row(x, row):
    width = x.shape[1]
    for c in range(0, width, LANES):
        prefetch(x, row * width + c)


# In these functions, the last columns are a loop of at most one round and not an ``if``. If a
# function ends in a branch, numba counts references to its arrays in each call, which takes 40 ns.


@jit_inline
def multiply_row(x, row, factor):
    width = x.shape[1]
    whole, many = width // LANES * LANES, splat(factor)
    for c in range(0, whole, LANES):
        store(x, row * width + c, multiply(load(x, row * width + c), many))
    for c in range(whole, width, LANES):
        at, some = row * width + c, first_lanes(width - c)
        store_some(x, at, multiply(load_some(x, at, some), many), some)


@jit_inline
def add_row(x, row, factor, y, y_row):
    width = x.shape[1]
    whole, many = width // LANES * LANES, splat(factor)
    for c in range(0, whole, LANES):
        at = row * width + c
        store(x, at, multiply_add(many, load(y, y_row * width + c), load(x, at)))
    for c in range(whole, width, LANES):
        at, some = row * width + c, first_lanes(width - c)
        y_some = load_some(y, y_row * width + c, some)
        store_some(x, at, multiply_add(many, y_some, load_some(x, at, some)), some)


@jit_inline
def dot_of_rows(x, y, row):
    width, total = x.shape[1], splat(x.dtype.type(0))
    whole, begin = width // LANES * LANES, row * width
    for c in range(begin, begin + whole, LANES):
        total = multiply_add(load(x, c), load(y, c), total)
    for c in range(whole, width, LANES):
        at, some = begin + c, first_lanes(width - c)
        total = multiply_add(load_some(x, at, some), load_some(y, at, some), total)
    return sum_lanes(total)


@jit_inline
def copy_row(target, row, shift, x, x_row, x_shift, width):
    at, x_at = row * target.shape[1] + shift, x_row * x.shape[1] + x_shift
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        store(target, at + c, load(x, x_at + c))
    for c in range(whole, width, LANES):
        some = first_lanes(width - c)
        store_some(target, at + c, load_some(x, x_at + c, some), some)


@jit_inline
def clear_row(x, row):
    width = x.shape[1]
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        store(x, row * width + c, splat(x.dtype.type(0)))
    for c in range(whole, width, LANES):
        store_some(x, row * width + c, splat(x.dtype.type(0)), first_lanes(width - c))
