"""What a command says when it cannot go on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from graphattn._extras import with_advice
from graphattn.style import in_style

INTERRUPTED = 130  # the status, as shells have it
# Lines of jsonargparse that tell what else would have been right, and what it was given.
REPEATED = ('Does not validate against any', 'Subtypes:', 'Errors:', 'Given value',
            "Expected a <class 'NoneType'>")


def run_or_exit(command: Callable[[], object]) -> None:
    """Runs a command, whose figures are in the style of the project; what users got wrong ends it
    with one line and status 2, not a traceback, and so does an interrupt, with status 130."""
    try:
        with in_style():
            command()
    except (ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        print(f'error: {in_short(error)}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        sys.exit(INTERRUPTED)


def in_short(error: Exception) -> str:
    """What went wrong, in one line, without the config that jsonargparse repeats."""
    lines = [line.strip() for line in with_advice(error).splitlines()]
    reasons = [line.removeprefix('- ') for line in lines]
    if any(line.startswith(REPEATED[0]) for line in reasons):
        lines = [line for line in reasons if not line.startswith(REPEATED)]
    return ' '.join(' '.join(lines).split())
