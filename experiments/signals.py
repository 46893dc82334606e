"""Signals that end a command. This module imports only modules that Python has at its start, so
that signals are handled while the libraries of a command are imported, which takes seconds."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GO_ON = 'run the same command again to go on'
INTERRUPTED = 130  # the status of shells
# schedulers send the first, and a closed terminal sends the second
ENDING = signal.SIGTERM, signal.SIGHUP
_listening: list[int] = []  # the signals that are handled while a command runs


class Ended(KeyboardInterrupt):
    """An interrupt that ends a command on a signal other than SIGINT, like a KeyboardInterrupt."""

    def __init__(self, number: int):
        super().__init__(number)
        self.status = 128 + number  # the convention of shells

    def __str__(self) -> str:
        return f'ended by {signal.Signals(self.args[0]).name}'


def end_early() -> None:
    """End this process at once on a signal, with a line, until a command has begun."""
    for number in (signal.SIGINT, *ENDING):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end_at_once)


def _end_at_once(number: int, _: FrameType | None) -> None:
    # A module that is being imported could catch an exception, and nothing is open yet.
    interrupt = KeyboardInterrupt() if number == signal.SIGINT else Ended(number)
    os.write(2, f'{in_a_line(interrupt)}\n'.encode())
    os._exit(128 + number)


@contextmanager
def ending_signals() -> Iterator[None]:
    """Return a context in which signals that end a command, if not ignored, raise Ended once."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING
            if is_main and signal.getsignal(number) in (signal.SIG_DFL, _end_at_once)]
    _listening.extend(ours)
    listen_again()
    if is_main and signal.getsignal(signal.SIGINT) == _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the ending
    raise Ended(number)


def exit_on(interrupt: KeyboardInterrupt) -> None:
    """End a command that an interrupt has ended, with a line and the exit status."""
    print(in_a_line(interrupt), file=sys.stderr)
    sys.exit(status_of(interrupt))


def in_a_line(interrupt: KeyboardInterrupt) -> str:
    """Return a line that says what has ended a command, and how to go on."""
    return f'{str(interrupt) or "interrupted"}; {GO_ON}'


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a command that an interrupt has ended."""
    return getattr(interrupt, 'status', INTERRUPTED)
