"""Messages and exit statuses of commands that fail, and what their parsers refuse."""

import re
import sys
from argparse import ArgumentError
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path

from experiments.runs.shipped import did_you_mean
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
    KEY + r"Expected a <class '(\w+)'>\. Got value: (.+?)(?= Problem with given class_path|$)":
        r"'\1' must be of type \2 (got '\3')",
    KEY + r"Expected a <class '(\w+)'>": r"'\1' must be of type \2",
    KEY + r'Not of type PositiveInt: .+': r"'\1' must be a positive whole number",
    KEY: r"'\1': "}
UNKNOWN = re.compile(r"(?:Group '([\w.]+)' does not accept option|Option) "
                     r"'([\w.]+)'( is not accepted)?$")
CLASS = re.compile(r"'([\w.]+)': Problem with given class_path '([\w.]+)'")
CHAIN = re.compile(rf'(?:{CLASS.pattern}: )+')  # of a class within classes
# What says only that another type was refused.
OTHER_TYPE = re.compile(r"Import path \S+ does not correspond to a subclass|"
                        r"Expected a <class '[^']+'>$")
# What follows the reason that the last class of a chain is refused for.
AGAIN = re.compile(r" (Problem with given class_path|Expected a <class) .*")
NO_NAME = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'$")
REFUSED = re.compile(r"'([\w.]+)' is not an argument(; did you mean [^?]*\?|; there are [\w, ]*)")


class Strict:
    """A base of parsers that refuse abbreviations, and unknown names with those that are near."""

    def __init__(self, *arguments: object, **options: object):
        super().__init__(*arguments, **{'allow_abbrev': False} | options)

    def error(self, message: str, *cause: Exception | None) -> None:
        if found := re.match('unrecognized arguments: (--[^ =]+)[^;]*$', message):
            message += did_you_mean(found[1], ['--import', *self._option_string_actions])
        elif found := UNKNOWN.match(message):
            message = self.refusal('.'.join(filter(None, found.groups()[:2])))
        super().error(message, *cause)

    def names(self) -> list[str]:
        return [action.dest for action in self._actions if not action.dest.endswith('help')]

    def refusal(self, name: str) -> str:
        group = name.rpartition('.')[0]
        known = [known for known in self.names() if known.rpartition('.')[0] == group]
        advice = did_you_mean(name, known) or f'; there are {", ".join(known)}'
        return f"'{name}' is not an argument{advice}"

    def parse_path(self, path: str | Path, *arguments: object, **options: object) -> object:
        try:
            return super().parse_path(path, *arguments, **options)
        except ArgumentError as error:
            raise ArgumentError(None, f'{path}: {error}') from error


def run_or_exit(command: Callable[[], object]) -> None:
    """Run a command; errors of users exit with a line and status 2, signals with 128 + theirs."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')  # for ASCII terminals
    try:
        with ending_signals(), in_style(), importing(sys.argv) as sys.argv:
            command()
    except (ArgumentError, ImportError, MemoryError, OSError, OverflowError, TypeError,
            ValueError) as error:
        print(f'error: {in_short(error)}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        exit_on(interrupt)


def in_short(error: Exception) -> str:
    """Return the message of an error in one line, without the config that jsonargparse repeats
    and in the words of this project."""
    lines = [line.strip() for line in with_advice(error).splitlines()]
    reasons = [line.removeprefix('- ') for line in lines]
    if any(line.startswith(REPEATED[0]) for line in reasons):
        lines = [line for line in reasons if not line.startswith(REPEATED)]
        reasons = [line for line in lines if not OTHER_TYPE.match(line)]
        if any(not line.endswith(':') for line in reasons):
            lines = reasons
    message = ' '.join(' '.join(lines).split())
    for theirs, ours in WORDS.items():
        message = re.sub(theirs, ours, message)
    return _of_the_last_class(message)


def _of_the_last_class(message: str) -> str:
    """Return the message of a class within classes, or of its argument, that was refused, without
    those that it is within, and without the other types that the class might have had."""
    chain, refused = CHAIN.search(message), REFUSED.search(message)
    classes = CLASS.findall(message[:refused.start()] if refused else chain[0] if chain else '')
    if not classes:
        return message
    file, path = message[:CLASS.search(message).start()], '.'.join(key for key, _ in classes)
    if refused:
        return f"{file}'{path}.{refused[1]}' is not an argument of {classes[-1][1]}{refused[2]}"
    reason = AGAIN.sub('', message[chain.end():])
    if missing := NO_NAME.search(reason):
        public = [name for name in dir(sys.modules.get(missing[1])) if name[0] != '_']
        reason += did_you_mean(missing[2], public)
    return f"{file}'{path}': {reason}"
