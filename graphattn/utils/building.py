"""Bounds on what files can build or hold: a config builds about as much as the weights beside it
hold, and tensors are finite and stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ['BoundedBuilding', 'check_finite', 'check_stored']

# Limits of the calls of torch's functions and of the bytes of new tensors: a constant, and a
# multiple of the tensors and the bytes of the weights. Models take about 20 calls for a tensor.
CALLS, CALLS_PER_TENSOR = 20_000, 200
BYTES, BYTES_PER_BYTE = 2**28, 16
_NEW = {torch.arange, torch.empty, torch.empty_like, torch.eye, torch.full, torch.linspace,
        torch.normal, torch.ones, torch.ones_like, torch.rand, torch.randint, torch.randn,
        torch.randperm, torch.zeros, torch.zeros_like}


class BoundedBuilding(TorchFunctionMode):
    """Context in which modules are built for the weights of a file."""

    # Sizes in a config that need far more tensors or bytes raise before memory is taken.
    def __init__(self, weights: Iterable[Tensor]):
        super().__init__()
        sizes = [weight.nbytes for weight in weights]
        self._calls = CALLS + CALLS_PER_TENSOR * len(sizes)
        self._bytes = BYTES + BYTES_PER_BYTE * sum(sizes)
        self._said = f'{len(sizes):,} tensors of {sum(sizes):,} bytes'

    def __torch_function__(self, func: Any, types: Any, args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self._calls -= 1
        if func in _NEW and str(kwargs.get('device')) != 'meta':
            sized = {name: value for name, value in kwargs.items()
                     if name not in ('generator', 'out', 'pin_memory')}
            self._bytes -= func(*args, **sized | {'device': 'meta'}).nbytes
        if self._calls < 0 or self._bytes < 0:
            raise ValueError(f"the sizes in the config need far more tensors or memory than the "
                             f"weights have ({self._said}); use the config of these weights")
        return func(*args, **kwargs)


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
