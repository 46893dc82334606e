"""Functions as commands: their arguments become the command line."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc

from jsonargparse import ArgumentError, auto_cli

from experiments.runs.command import run_or_exit


def run_function(function: Callable[..., object], as_positional: bool = True) -> None:
    """Run a function with the arguments of the command line, as by ``run_or_exit``."""
    def run() -> None:
        try:
            auto_cli(with_short_summary(function), as_positional=as_positional, exit_on_error=False)
        except ArgumentError as error:
            raise ValueError(str(error)) from error

    run_or_exit(run)


def with_short_summary(function: Callable) -> Callable:
    """Write the first sentence of a docstring in one line, the only one that helps show."""
    summary, *rest = cleandoc(function.__doc__).partition('\n\n')
    function.__doc__ = ' '.join(summary.split()) + ''.join(rest)
    return function
