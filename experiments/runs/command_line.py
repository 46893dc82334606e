"""A function as a command."""

from __future__ import annotations

from collections.abc import Callable

from jsonargparse import ArgumentError, auto_cli

from experiments.runs.command import run_or_exit


def run_function(function: Callable[..., object], as_positional: bool = True) -> None:
    """Run a function with the arguments of the command line. Errors end it with one line, see
    :func:`~experiments.runs.command.run_or_exit`.

    Args:
        function (Callable): What is run.
        as_positional (bool): Arguments without a default are given without their names.
    """
    def run() -> None:
        try:
            auto_cli(function, as_positional=as_positional, exit_on_error=False)
        except ArgumentError as error:
            raise ValueError(str(error)) from error

    run_or_exit(run)
