"""Compiled functions that release the interpreter's lock, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def run_calls(calls: list[tuple[Callable, ...]]) -> None:
    """Runs ``(function, *arguments)`` of each call in a thread of its own, the first one here."""
    here, *elsewhere = calls
    futures = [_pool(os.getpid(), len(elsewhere)).submit(*call) for call in elsewhere]
    here[0](*here[1:])
    for future in futures:
        future.result()


@cache
def _pool(process: int, num_threads: int) -> ThreadPoolExecutor:
    """Threads of this process: those of its parent do not survive a fork.

    Not numba's own threads: its layer without dependencies may be entered by one thread at a time.
    """
    return ThreadPoolExecutor(num_threads, 'graphattn')
