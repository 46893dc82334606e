"""Freed memory: kept for the next allocation, or returned to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ['keeping_freed_memory']

# Constants of GNU's malloc.h, with the default values.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_FIRST = {_TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 128 * 2**10, _MMAP_MAX: 65536}
_KEEP = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20, _MMAP_MAX: 0}


@contextmanager
def keeping_freed_memory() -> Iterator[bool]:
    """Keep freed memory in this process for later allocations.

    GNU's C library returns freed tensors of more than 32 MiB to the system, and the next tensors
    are in new pages, which the kernel clears on first write. A training step allocates and frees
    many such tensors, for example one value per edge of a block model. Inside this context the
    process keeps the pages, up to its peak use; they are returned on exit.

    There is no guarantee: the C library places allocations, and in a fragmented heap this may have
    no effect. The library's threshold for large arrays, which is adaptive by default, stays fixed
    afterwards.

    Yields:
        Whether this is supported. It has no effect on systems other than Linux with glibc.

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
