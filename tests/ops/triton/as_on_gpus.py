"""Checks of kernels that Triton's interpreter takes for granted and a GPU would not.

What kernels read and write is within the tensors that they are given: each address is compared with
those of the tensors, as compute-sanitizer does on a GPU. And bfloat16 is multiplied as numbers,
where the interpreter multiplies its bits; what TF32 leaves out of float32 is left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import triton.language as tl
from torch import Tensor
from triton._C.libtriton.ir import INPUT_PRECISION
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

_init_args = GridExecutor._init_args_hst
_dot = InterpreterBuilder.create_dot
_load, _store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
_ranges = np.empty((0, 2), np.uint64)


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Inside, a kernel that reads or writes beside its tensors is an error, and products are
    right."""
    with (patch.object(InterpreterBuilder, 'create_dot', _multiply),
          patch.object(GridExecutor, '_init_args_hst', _note_tensors),
          patch.object(InterpreterBuilder, 'create_masked_load', _checked_load),
          patch.object(InterpreterBuilder, 'create_masked_store', _checked_store)):
        yield


def _multiply(builder, a, b, total, precision, *rest):
    a, b = (builder.create_fp_ext(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x
            for x in (a, b))
    if precision not in (INPUT_PRECISION.TF32, INPUT_PRECISION.TF32x3):
        return _dot(builder, a, b, total, precision, *rest)
    high_a, high_b = (TensorHandle(_in_tf32(x.data), x.dtype) for x in (a, b))
    if precision == INPUT_PRECISION.TF32x3:
        low_a, low_b = (TensorHandle(_in_tf32(x.data - high.data), x.dtype)
                        for x, high in ((a, high_a), (b, high_b)))
        for first, second in ((low_a, high_b), (high_a, low_b)):
            product = _dot(builder, first, second, _zeros_like(total), precision, *rest)
            # Of what is infinite the low digits are no number.
            number = np.where(np.isnan(product.data), 0, product.data)
            total = TensorHandle(total.data + number, total.dtype)
    return _dot(builder, high_a, high_b, total, precision, *rest)


def _zeros_like(x: TensorHandle) -> TensorHandle:
    return TensorHandle(np.zeros_like(x.data), x.dtype)


def _in_tf32(x: np.ndarray) -> np.ndarray:
    """Without the 13 digits that tensor cores do not look at; in half precision these are 0."""
    if x.dtype != np.float32:
        return x
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _note_tensors(executor: GridExecutor, args: tuple, kwargs: dict) -> tuple[list, dict]:
    global _ranges
    args, kwargs = _init_args(executor, args, kwargs)
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.numel()]
    found = []  # that overlap are joined
    for first, end in sorted(map(_addresses, tensors)):
        if found and first <= found[-1][1]:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([first, end])
    _ranges = np.array(found, np.uint64).reshape(-1, 2)
    return args, kwargs


def _addresses(x: Tensor) -> tuple[int, int]:
    """Return the addresses where its values begin and end."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _checked_load(builder, pointers, mask, *rest):
    return _load(builder, pointers, _checked('reads', pointers, mask), *rest)


def _checked_store(builder, pointers, value, mask, *rest):
    return _store(builder, pointers, value, _checked('writes', pointers, mask), *rest)


def _checked(does: str, pointers, mask) -> TensorHandle:
    """The mask, as truth values: it may be of 0 and 1, which Triton 3.9 refuses to take."""
    mask = TensorHandle(mask.data.astype(bool), mask.dtype)
    _check(does, pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].astype(np.uint64),
           pointers.get_element_ty().primitive_bitwidth // 8)
    return mask


def _check(does: str, at: np.ndarray, itemsize: int) -> None:
    if at.size == 0:
        return
    size = np.uint64(max(itemsize, 1))
    number = np.searchsorted(_ranges[:, 0], at, side='right') - 1
    is_within = number >= 0
    if len(_ranges):
        is_within &= at + size <= _ranges[number, 1]
    if not is_within.all():
        raise IndexError(f'a kernel {does} {int((~is_within).sum())} numbers beside its tensors')
