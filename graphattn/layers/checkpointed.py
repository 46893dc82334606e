"""Activation checkpoints. When the backward pass repeats the forward pass, modules and a generator
have the same state as in the first pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from graphattn._tensors import cache_host_copies


def checkpointed(run: Callable[..., Any], *inputs: Any, generator: torch.Generator | None,
                 **options: Any) -> Any:
    """Return ``run(*inputs, generator=generator, **options)`` under an activation checkpoint."""
    # The backward pass calls run again with the same random numbers.
    once_more = partial(checkpoint, run, *inputs, use_reentrant=False, generator=generator,
                        **options)
    if torch.compiler.is_compiling() and generator is None:
        return once_more()  # compiled code treats parameters as arguments
    asked = run, *inputs, *options.values()
    as_now = _AsNow([part for part in asked if isinstance(part, nn.Module)], generator)
    return once_more(context_fn=lambda: (nullcontext(), as_now))


def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``forward``, so that the backward pass of modules with ``recompute`` repeats it."""
    again = cache_host_copies(forward)

    @wraps(forward)
    def run(self, *inputs: Any, **options: Any) -> Any:
        if self.recompute:
            return checkpointed(again, self, *inputs, **{'generator': None, **options})
        return forward(self, *inputs, **options)
    return run


class _AsNow:
    """Context that restores for a while what modules and a generator held when it was built."""

    # torch's checkpoint restores only the default generator. Parameters must be restored because of
    # torch.func.functional_call, which has put other tensors back before the backward pass starts.
    # DTensors are not, because FSDP gathers and divides them itself; nor what is a parameter only
    # at times, as under FSDP1 with use_orig_params.
    def __init__(self, modules: list[nn.Module], generator: torch.Generator | None):
        self.parts = [part for module in modules for part in module.modules()]
        self.names = [[name for name, parameter in part._parameters.items()
                       if not isinstance(parameter, DTensor)] for part in self.parts]
        self.generator = generator
        self.state = self._read()

    def __enter__(self):  # once for each backward pass
        self.state_before = self._read()
        self._write(self.state)

    def __exit__(self, *error):
        self._write(self.state_before)

    def _read(self) -> tuple:
        return ([(part.training, {name: part._parameters[name] for name in names
                                  if name in part._parameters},
                  dict(part._buffers)) for part, names in zip(self.parts, self.names)],
                None if self.generator is None else self.generator.get_state())

    def _write(self, state: tuple) -> None:
        of_parts, of_generator = state
        for part, (part.training, parameters, buffers) in zip(self.parts, of_parts):
            part._parameters.update({name: parameter for name, parameter in parameters.items()
                                     if name in part._parameters})
            part._buffers.update(buffers)
        if self.generator is not None:
            self.generator.set_state(of_generator)
