"""Activation checkpoints that restore the state of modules and of a generator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint


def checkpointed(run: Callable[..., Any], *inputs: Any, generator: torch.Generator | None,
                 **options: Any) -> Any:
    """Return ``run(*inputs, **options)``, where ``run`` is a module or a method of a module. Only
    the arguments are stored for the backward pass, which calls ``run`` again."""
    once_more = partial(checkpoint, run, *inputs, use_reentrant=False, generator=generator,
                        **options)
    if torch.compiler.is_compiling() and generator is None:
        return once_more()  # compiled code treats parameters as arguments
    asked = getattr(run, '__self__', run), *options.values()
    as_now = _AsNow([part for part in asked if isinstance(part, nn.Module)], generator)
    return once_more(context_fn=lambda: (nullcontext(), as_now))


class _AsNow:
    """Context in which modules have the tensors and mode, and a generator has the state, that they
    had when this object was built. The context can be entered once for each backward pass.

    The tensors may be arguments of ``torch.func.functional_call``. That call has returned when the
    backward pass starts, so the modules have other tensors then. torch's ``checkpoint`` restores
    only the default generator. Parameters that are DTensors are left alone, because FSDP gathers
    and divides them itself.
    """

    def __init__(self, modules: list[nn.Module], generator: torch.Generator | None):
        self.parts = [part for module in modules for part in module.modules()]
        self.names = [[name for name, parameter in part._parameters.items()
                       if not isinstance(parameter, DTensor)] for part in self.parts]
        self.generator = generator
        self.state = self._read()

    def __enter__(self):
        self.state_before = self._read()
        self._write(self.state)

    def __exit__(self, *error):
        self._write(self.state_before)

    def _read(self) -> tuple:
        return ([(part.training, {name: part._parameters[name] for name in names},
                  dict(part._buffers)) for part, names in zip(self.parts, self.names)],
                None if self.generator is None else self.generator.get_state())

    def _write(self, state: tuple) -> None:
        of_parts, of_generator = state
        for part, (part.training, parameters, buffers) in zip(self.parts, of_parts):
            part._parameters.update(parameters)
            part._buffers.update(buffers)
        if self.generator is not None:
            self.generator.set_state(of_generator)
