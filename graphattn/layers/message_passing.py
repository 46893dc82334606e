"""Hooks and subclasses that need the steps of message passing, which a fused kernel skips."""

from __future__ import annotations

from collections.abc import Sequence

from torch_geometric.nn import MessagePassing


def hooks_on(*steps: str) -> list[str]:
    """Return the attributes in which PyG's layers store hooks on ``steps``, such as
    ``'message'``."""
    return [f'_{step}_forward_{when}hooks' for step in steps for when in ('', 'pre_')]


def has_hooks(layer: MessagePassing, names: Sequence[str]) -> bool:
    """Return whether a layer has any hook in the attributes that :func:`hooks_on` returns."""
    own = layer.__dict__
    for name in names:
        if own[name]:
            return True
    return False


def overrides(layer: type[MessagePassing], base: type[MessagePassing], *steps: str) -> bool:
    return any(getattr(layer, step) is not getattr(base, step) for step in steps)
