"""What a command says when it cannot go on."""

from __future__ import annotations

import sys
from collections.abc import Callable


def run_or_exit(command: Callable[[], object]) -> None:
    """Runs a command; what users got wrong ends it with one line and status 1, not a traceback."""
    try:
        command()
    except (OSError, TypeError, ValueError) as error:
        sys.exit(f'error: {in_short(error)}')


def in_short(error: Exception) -> str:
    """What went wrong while jsonargparse built something, without the config that it repeats."""
    reasons = [line.strip().removeprefix('- ') for line in str(error).splitlines()
               if line.lstrip().startswith('- ') and 'NoneType' not in line
               and 'Does not validate' not in line]
    is_of_jsonargparse = str(error).startswith('Does not validate against any')
    return '; '.join(reasons) if is_of_jsonargparse and reasons else str(error)
