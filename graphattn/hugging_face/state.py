"""State of an attached module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

__all__ = ['Attachment']


@dataclass
class Attachment:
    """The state of one attention module of a model to which graphs are attached.

    Args:
        before (dict): The config's implementation of attention before, under ``''``, and those of
            nested configs, under their names.
        attends (bool): Whether the module attends along edges now.
        backend (str): Kernel for graphs.
        is_named (bool): Whether ``layers`` names it, so that cross-attention is replaced too.
        noticing (tuple of RemovableHandle): Handles of the hooks that note the arguments of each
            call. That of an attention module sets the next two.
        has_other_keys (bool): Whether keys were computed from other hidden states than queries.
        has_cache (bool): Whether it was called with a cache.
        heads (tuple of int, optional): Heads that attend along the source; all if omitted. The
            others attend to all keys, by edges.
        watch (Callable, optional): Attention that is called in place of attention along a graph,
            with the arguments of :func:`graphattn.layers.padded.attend_padded` but the source.
        hops (int or float): Number of hops that values travel.
        teleport (float or sequence of float): The teleport, or its initial value if it is learned.
    """

    before: dict[str, Any]
    attends: bool = False
    backend: str = 'auto'
    is_named: bool = False
    noticing: tuple[RemovableHandle, ...] = ()
    has_other_keys: bool = False
    has_cache: bool = False
    heads: tuple[int, ...] | None = None
    watch: Callable[..., Tensor] | None = None
    hops: int | float = 1
    teleport: float | Sequence[float] = 0.

    @property
    def adds_masks(self) -> bool:
        """Return whether the original attention of the module adds masks to logits."""
        return self.before[''] == 'eager'
