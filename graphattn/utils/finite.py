"""Refusal of numbers that are not finite, before they become results."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ['check_finite', 'check_stored']

REPEATED = 2**26  # bytes by which an expanded tensor may exceed its storage


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise a ValueError that ends with ``where`` if a floating-point tensor is not finite."""
    for name, value in tensors.items():
        check_stored(name, value)
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f'{name!r} is not finite {where}')


def check_stored(name: str, tensor: Tensor) -> None:
    """Raise a ValueError if the shape of a tensor from a file needs far more bytes than it has."""
    if tensor.layout != torch.strided:
        raise ValueError(f'{name!r} must be a dense tensor (got {tensor.layout})')
    stored = tensor.untyped_storage().nbytes()
    if tensor.nbytes > stored + REPEATED:
        raise ValueError(f'{name!r} declares a shape of {tensor.nbytes:,} bytes (got {stored:,})')
