"""Control over freed memory, which a process can keep for the next allocation or return to the
system."""

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
    """Keep freed memory for later allocations of this process, inside this context.

    Outside of this context, GNU's C library returns the memory of freed tensors of more than 32 MiB
    to the system. The next tensors are in new pages, which the kernel of Linux clears on first
    write. A training step allocates and frees many such tensors, for example one value for each
    edge of a block model. Inside this context, the process keeps freed pages, up to its peak use,
    and returns them on exit.

    The effect is not guaranteed, because the C library places allocations, and the heap may be
    fragmented. After the context, the threshold of the C library for large arrays, which is
    adaptive by default, stays fixed.

    Yields:
        Whether the system is supported. On systems other than Linux with glibc, the context has no
        effect.

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
