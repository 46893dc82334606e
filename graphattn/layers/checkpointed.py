"""Checkpoints in which modules and a generator are again what they were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpointed(run: Callable[..., Any], *inputs: Any, generator: torch.Generator | None,
                 **options: Any) -> Any:
    """``run``, a module or a method of one, of all arguments, of which the backward pass keeps
    nothing else."""
    once_more = partial(checkpoint, run, *inputs, use_reentrant=False, generator=generator,
                        **options)
    if torch.compiler.is_compiling() and generator is None:
        return once_more()  # compiled code takes tensors for arguments
    asked = getattr(run, '__self__', run), *options.values()
    again = [_Restored(part) for part in asked if isinstance(part, nn.Module)]
    if generator is not None:  # torch rewinds its default generator itself, and no other
        again.append(_Rewound(generator))
    return once_more(context_fn=lambda: (nullcontext(), _Nested(again)))


class _Rewound:
    """Inside, a generator draws again what it draws from now on; outside, it does not notice."""

    def __init__(self, generator: torch.Generator):
        self.generator, self.state = generator, generator.get_state()

    def __enter__(self):
        self.state_before = self.generator.get_state()
        self.generator.set_state(self.state)

    def __exit__(self, *error):
        self.generator.set_state(self.state_before)


class _Restored:
    """Inside, a module has the tensors and the mode that it has now. The tensors may be those of
    ``torch.func.functional_call``, which is over when the backward pass begins."""

    def __init__(self, module: nn.Module):
        self.parts = list(module.modules())
        self.state = self._read()

    def __enter__(self):
        self.state_before = self._read()
        self._write(self.state)

    def __exit__(self, *error):
        self._write(self.state_before)

    def _read(self) -> list[tuple[bool, dict[str, Any], dict[str, Any]]]:
        return [(part.training, dict(part._parameters), dict(part._buffers))
                for part in self.parts]

    def _write(self, state: list[tuple[bool, dict[str, Any], dict[str, Any]]]) -> None:
        for part, (part.training, parameters, buffers) in zip(self.parts, state):
            part._parameters.update(parameters)
            part._buffers.update(buffers)


class _Nested:
    """Contexts one inside of the other, as often as a graph is walked backward."""

    def __init__(self, contexts: list[AbstractContextManager]):
        self.contexts = contexts

    def __enter__(self):
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error):
        for context in reversed(self.contexts):
            context.__exit__(*error)
