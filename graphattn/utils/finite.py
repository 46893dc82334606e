"""Refusal of numbers that are not finite, before they become results."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ['check_finite']

REPEATED = 2**26  # bytes by which an expanded tensor may exceed its storage


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise a ValueError that ends with ``where`` if a floating-point tensor is not finite."""
    for name, value in tensors.items():
        if value.nbytes > value.untyped_storage().nbytes() + REPEATED:
            raise ValueError(f'{name!r} declares a shape of {value.nbytes:,} bytes, and has '
                             f'{value.untyped_storage().nbytes():,}')
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f'{name!r} is not finite {where}')
