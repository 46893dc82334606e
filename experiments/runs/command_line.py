"""Functions as commands: their arguments become the command line."""

from collections.abc import Callable
from inspect import cleandoc

from jsonargparse import ArgumentParser, auto_cli

from experiments.runs.command import Strict, run_or_exit


class Parser(Strict, ArgumentParser):
    """The parser of a command without configs of classes."""


def run_function(function: Callable[..., object], as_positional: bool = True) -> None:
    """Run a function with the arguments of the command line."""
    run_or_exit(lambda: auto_cli(with_short_summary(function), as_positional=as_positional,
                                 exit_on_error=False, parser_class=Parser))


def with_short_summary(function: Callable) -> Callable:
    """Write the first sentence of a docstring in one line, the only one that helps show."""
    summary, *rest = cleandoc(function.__doc__).partition('\n\n')
    function.__doc__ = ' '.join(summary.split()) + ''.join(rest)
    return function
