"""What modules ask of tensors: can they be looked at, do they last, how narrow can they be."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_traced(*tensors: Tensor) -> bool:
    """Whether the numbers of ``tensors`` cannot be looked at: in code that torch is compiling, and
    in tensors without numbers. What is checked by looking at numbers is not checked there."""
    return torch.compiler.is_compiling() or any(
        isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors)


def lasting(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy of one made in inference mode, which no training step could use."""
    if torch.compiler.is_compiling() or not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def narrow(index: Tensor, bound: int) -> Tensor:
    """Numbers below ``bound`` in as few bytes as are enough."""
    return index.to(index_dtype(bound))


def index_dtype(bound: int) -> torch.dtype:
    """uint16, int32 or int64: the smallest for numbers below ``bound``."""
    return torch.uint16 if bound <= 2**16 else torch.int32 if bound <= 2**31 else torch.int64
