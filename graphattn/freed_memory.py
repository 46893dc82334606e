"""Memory that is freed: kept for the next allocation, or given back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ['keeping_freed_memory']

# Of GNU's malloc.h, with the values that it begins with.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_FIRST = {_TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 128 * 2**10, _MMAP_MAX: 65536}
_KEEP = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20, _MMAP_MAX: 0}


@contextmanager
def keeping_freed_memory() -> Iterator[bool]:
    """Have this process keep what it frees for what it allocates next.

    GNU's C library gives tensors of more than 32 MiB back to the system when they are freed, and
    the next ones come in new pages, each of which is cleared when it is first written to. A
    training step makes and frees many such tensors: one number for each edge of a block model, for
    example. Inside this context the pages stay, up to the most that was in use at a time; behind it
    they are given back.

    It is an attempt: where a tensor fits among what others hold is the C library's affair, and in a
    heap that much else has used it may change nothing. The library's threshold for large arrays,
    which adapts itself by default, stays as it is from then on.

    Yields:
        Whether the C library can do so. It does nothing on systems other than Linux with glibc.

    Example:
        >>> import torch
        >>> from graphattn.freed_memory import keeping_freed_memory
        >>> with keeping_freed_memory() as is_kept:
        ...     for step in range(3):
        ...         loss = torch.ones(2_000_000).square().sum()
    """
    try:
        library = ctypes.CDLL(None)
        set_option, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        yield False
        return
    try:
        yield all([set_option(option, value) for option, value in _KEEP.items()])
    finally:
        for option, value in _FIRST.items():
            set_option(option, value)
        trim(ctypes.c_size_t(0))
