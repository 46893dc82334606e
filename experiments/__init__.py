"""Everything that trains: tasks, modules, runs, benchmarks and the papers' experiments."""

import sys
from typing import Any

from experiments.signals import end_early

__all__ = ['Run', 'load_run']

if sys.argv[:1] == ['-m']:  # python -m has begun to look for its module
    end_early()


def __getattr__(name: str) -> Any:
    """Import an attribute of this package when it is first read, because some imports take
    seconds."""
    if name in __all__:
        from experiments.runs import load_run

        return getattr(load_run, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
