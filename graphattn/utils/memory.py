"""A bound on memory, so that allocations that do not fit raise an error instead of killing the
process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

try:
    import resource
except ImportError:  # Windows does not overcommit
    resource = None

__all__ = ['free_bytes', 'within_free_memory']

_OF_TORCH = ("can't allocate memory", 'Storage size calculation overflowed')
_CGROUP = Path('/sys/fs/cgroup')


@contextmanager
def within_free_memory() -> Iterator[None]:
    """Refuse allocations beyond the free memory inside this context. Otherwise Linux may grant such
    an allocation, and kill the process when it writes to the memory.

    Raises:
        MemoryError: An allocation was refused.
    """
    if resource is None:
        yield
        return
    free = free_bytes()
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [psutil.Process().memory_info().data + free, before, most]
    limit = min(bound for bound in bounds if bound != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(text in str(error) for text in _OF_TORCH):
            raise
        raise MemoryError(f"this call needs more than the free memory of {free / 2 ** 30:.1f} GiB; "
                          f"use fewer tokens, edges or steps ({error})") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def free_bytes() -> int:
    """Return the number of bytes that are free on the machine, or in the container if its limit is
    lower."""
    free = psutil.virtual_memory().available
    try:
        most, taken = (int((_CGROUP / f'memory.{name}').read_text()) for name in ('max', 'current'))
    except (OSError, ValueError):  # no container, or 'max'
        return free
    return min(free, max(most - taken, 0))
