"""Messages and exit statuses of commands that fail or are interrupted."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from graphattn.style import in_style
from graphattn.utils.extras import with_advice
from graphattn.utils.trust import importing

INTERRUPTED = 130  # the status of shells
_listening: list[int] = []  # the signals that are handled while a command runs
# schedulers send the first, and a closed terminal sends the second
ENDING = signal.SIGTERM, signal.SIGHUP
# The beginnings of those lines of jsonargparse's errors that list alternatives or repeat the value.
REPEATED = ('Does not validate against any', 'Subtypes:', 'Errors:', 'Given value',
            "Expected a <class 'NoneType'>")


class Ended(KeyboardInterrupt):
    """An interrupt that ends a command on a signal other than SIGINT, like a KeyboardInterrupt."""

    def __init__(self, number: int):
        super().__init__(number)
        self.status = 128 + number  # the convention of shells

    def __str__(self) -> str:
        return f'ended by {signal.Signals(self.args[0]).name}'


@contextmanager
def ending_signals() -> Iterator[None]:
    """Return a context in which signals that end a command raise :class:`Ended`, once.

    Signals that are ignored stay ignored.
    """
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
    """Install this project's signal handlers again. Call it after a library has replaced them."""
    for number in _listening:
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the ending
    raise Ended(number)


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a command that an interrupt has ended."""
    return getattr(interrupt, 'status', INTERRUPTED)


def run_or_exit(command: Callable[[], object]) -> None:
    """Run a command, whose figures have the style of the project.

    A user error exits with a message of one line and status 2, without a traceback. Ctrl-C, SIGTERM
    and SIGHUP exit with 128 plus the signal's number.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')  # for ASCII terminals
    try:
        with ending_signals(), in_style(), importing(sys.argv) as sys.argv:
            command()
    except (ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        print(f'error: {in_short(error)}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or 'interrupted', file=sys.stderr)
        sys.exit(status_of(interrupt))


def in_short(error: Exception) -> str:
    """Return the message of an error in one line, without the config that jsonargparse repeats."""
    lines = [line.strip() for line in with_advice(error).splitlines()]
    reasons = [line.removeprefix('- ') for line in lines]
    if any(line.startswith(REPEATED[0]) for line in reasons):
        lines = [line for line in reasons if not line.startswith(REPEATED)]
    return ' '.join(' '.join(lines).split())
