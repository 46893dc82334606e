"""Checkpoints in which a generator of random numbers draws again what it has drawn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def checkpointed(run: Callable[..., Any], *inputs: Any, generator: torch.Generator | None,
                 **options: Any) -> Any:
    """``run`` of all arguments, of which the backward pass keeps nothing else."""
    # torch rewinds its default generator itself, and no other.
    rewound = nullcontext() if generator is None else _Rewound(generator)
    return checkpoint(run, *inputs, use_reentrant=False, generator=generator, **options,
                      context_fn=lambda: (nullcontext(), rewound))


class _Rewound:
    """Inside, a generator draws again what it draws from now on; outside, it does not notice."""

    def __init__(self, generator: torch.Generator):
        self.generator, self.state = generator, generator.get_state()

    def __enter__(self):
        self.state_before = self.generator.get_state()
        self.generator.set_state(self.state)

    def __exit__(self, *error):
        self.generator.set_state(self.state_before)
