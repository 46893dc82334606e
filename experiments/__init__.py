"""Everything that trains: tasks, modules, runs, benchmarks and the papers' experiments."""

from typing import Any

__all__ = ['Run', 'load_run']


def __getattr__(name: str) -> Any:
    """Import an attribute of this package when it is first read, because some imports take
    seconds."""
    if name in __all__:
        from experiments.runs import load_run

        return getattr(load_run, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
