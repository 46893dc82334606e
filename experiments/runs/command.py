"""Messages and exit statuses of a command that cannot go on or is told to end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from graphattn.style import in_style
from graphattn.utils.extras import with_advice

INTERRUPTED = 130  # the status, as shells have it
_listening: list[int] = []  # signals, while a command is at work
ENDING = signal.SIGTERM, signal.SIGHUP  # of schedulers, and of a terminal that is closed
# Lines of jsonargparse that tell what else would have been right, and what it was given.
REPEATED = ('Does not validate against any', 'Subtypes:', 'Errors:', 'Given value',
            "Expected a <class 'NoneType'>")


class Ended(KeyboardInterrupt):
    """Ends a command that got another signal than Ctrl-C's, at the same places."""

    def __init__(self, number: int):
        super().__init__(number)
        self.status = 128 + number  # as shells have it

    def __str__(self) -> str:
        return f'ended by {signal.Signals(self.args[0]).name}'


@contextmanager
def ending_signals() -> Iterator[None]:
    """Raise :class:`Ended` once at signals that end a command; ignored signals stay ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if is_main and signal.getsignal(number) == signal.SIG_DFL]
    _listening.extend(ours)
    listen_again()
    try:
        yield
    finally:
        for number in ours:
            _listening.remove(number)
            signal.signal(number, signal.SIG_DFL)


def listen_again() -> None:
    """Take the signals back from a library that listens to them too."""
    for number in _listening:
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # what is being ended is not ended again
    raise Ended(number)


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status that a shell expects."""
    return getattr(interrupt, 'status', INTERRUPTED)


def run_or_exit(command: Callable[[], object]) -> None:
    """Run a command, with figures in the style of the project. A user's error ends it with one line
    and status 2, not a traceback; Ctrl-C, SIGTERM and SIGHUP end it with 128 and the signal's
    number."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')  # of a terminal that knows ASCII alone
    try:
        with ending_signals(), in_style():
            command()
    except (ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        print(f'error: {in_short(error)}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or 'interrupted', file=sys.stderr)
        sys.exit(status_of(interrupt))


def in_short(error: Exception) -> str:
    """Return an error in one line, without the config that jsonargparse repeats."""
    lines = [line.strip() for line in with_advice(error).splitlines()]
    reasons = [line.removeprefix('- ') for line in lines]
    if any(line.startswith(REPEATED[0]) for line in reasons):
        lines = [line for line in reasons if not line.startswith(REPEATED)]
    return ' '.join(' '.join(lines).split())
