"""Functions as commands, and messages and exit statuses of commands that fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from inspect import cleandoc
from io import TextIOWrapper

from experiments.signals import ending_signals, exit_on
from graphattn.style import in_style
from graphattn.utils.trust import importing, with_advice

# The beginnings of those lines of jsonargparse's errors that list alternatives or repeat the value.
REPEATED = ('Does not validate against any', 'Subtypes:', 'Errors:', 'Given value',
            "Expected a <class 'NoneType'>")
# jsonargparse's words, and this project's
KEY = r'Parser key "([^"]+)": '
WORDS = {
    KEY + r'Expected a typing\.Literal\[(.*?)\]\. Got value: (.+)':
        r"'\1' must be one of \2 (got '\3')",
    KEY + r'Expected a typing\.Literal\[(.*?)\]': r"'\1' must be one of \2",
    KEY + r"Expected a <class '(\w+)'>\. Got value: (.+)": r"'\1' must be of type \2 (got '\3')",
    KEY + r"Expected a <class '(\w+)'>": r"'\1' must be of type \2",
    KEY + r'Not of type PositiveInt: .+': r"'\1' must be a positive whole number",
    KEY: r"'\1': "}


def run_or_exit(command: Callable[[], object]) -> None:
    """Run a command; errors of users exit with a line and status 2, signals with 128 + theirs."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')  # for ASCII terminals
    try:
        with ending_signals(), in_style(), importing(sys.argv) as sys.argv:
            command()
    except (ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        print(f'error: {in_short(error)}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        exit_on(interrupt)


def run_function(function: Callable[..., object], as_positional: bool = True) -> None:
    """Run a function with the arguments of the command line, as by ``run_or_exit``."""
    from jsonargparse import ArgumentError, auto_cli

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


def in_short(error: Exception) -> str:
    """Return the message of an error in one line, without the config that jsonargparse repeats
    and in the words of this project."""
    lines = [line.strip() for line in with_advice(error).splitlines()]
    reasons = [line.removeprefix('- ') for line in lines]
    if any(line.startswith(REPEATED[0]) for line in reasons):
        lines = [line for line in reasons if not line.startswith(REPEATED)]
    message = ' '.join(' '.join(lines).split())
    for theirs, ours in WORDS.items():
        message = re.sub(theirs, ours, message)
    return message
