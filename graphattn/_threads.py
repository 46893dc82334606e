"""Compiled functions that release the interpreter's lock, several at a time."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def run_calls(calls: list[tuple]) -> None:
    """Runs ``(function, *arguments)`` of each call, as many at a time as torch has threads.

    These are torch's own threads where torch has OpenMP. They wait for their next work by spinning,
    for some ms: other threads would share the cores with them just after every operation of torch.
    """
    waiting, errors = list(calls), []

    def work(_=None) -> None:
        while waiting and not errors:  # OpenMP may grant fewer threads than asked for
            try:
                function, *arguments = waiting.pop()
            except IndexError:  # another thread was faster
                return
            try:
                function(*arguments)
            except BaseException as error:  # an exception cannot pass through OpenMP
                errors.append(error)

    num_threads = min(len(calls), torch.get_num_threads())
    if num_threads == 1:
        work()
    elif _openmp(os.getpid()) is not None:
        _openmp(os.getpid()).GOMP_parallel(_REGION(work), None, num_threads, 0)
    else:
        wait = [_pool(os.getpid(), num_threads - 1).submit(work) for _ in range(num_threads - 1)]
        work()
        for future in wait:
            future.result()
    if errors:
        raise errors[0]


_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_FIRST_PROCESS = os.getpid()


@cache
def _openmp(process: int) -> ctypes.CDLL | None:
    """The OpenMP library that torch was linked with: GNU's, or LLVM's and Intel's, which have its
    entry point too. ``None`` if there is none, or after a fork, which its threads do not survive.
    """
    if process != _FIRST_PROCESS:
        return None
    try:
        library = ctypes.CDLL(torch._C.__file__)
        library.GOMP_parallel.argtypes = [_REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
    except (OSError, AttributeError):
        return None
    return library


@cache
def _pool(process: int, num_threads: int) -> ThreadPoolExecutor:
    """Threads of this process: those of its parent do not survive a fork either."""
    return ThreadPoolExecutor(num_threads, 'graphattn')
