"""Compiled functions that release the interpreter's lock, several at a time."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch


def run_calls(calls: list[tuple]) -> None:
    """Run ``(function, *arguments)`` of each call, as many at a time as torch has threads.

    These are torch's own threads where torch has OpenMP. They wait for their next work by spinning,
    for some ms: other threads would share the cores with them just after every operation of torch.

    It returns when all calls have returned. What a call raises, or the handler of a signal while
    calls run, ends the others after the call that they are at, and is raised here. A process that
    was forked after torch's threads had begun and only then imports this module cannot know of them
    and hangs, as it would in torch's own operations: import it before, or spawn.

    Raises:
        RuntimeError: A call was lost, which should not happen.
    """
    waiting, finished, errors = iter(calls), [], []
    workers = [_worker(waiting, finished, errors)
               for _ in range(min(len(calls), torch.get_num_threads()))]
    for worker in workers:
        next(worker)
    if len(workers) > 1:
        _run_side_by_side(workers)
    for worker in workers:  # those for which no thread was granted
        next(worker, None)
    if errors:
        raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
    if len(finished) < len(calls):
        raise RuntimeError(f"only {len(finished)} of {len(calls)} calls have returned")


def start_of_threads() -> int:
    """Return the address of ``start(region, data, num_threads, flags)``, by which compiled code
    calls ``region(data)`` in so many threads, or in fewer: torch's own, as in :func:`run_calls`."""
    return _start(os.getpid())


@cache
def _start(process: int) -> int:
    openmp = _openmp(process)
    start = _START_IN_POOL if openmp is None else openmp.GOMP_parallel
    return ctypes.cast(start, ctypes.c_void_p).value


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
def _START_IN_POOL(region: int, data: int, num_threads: int, flags: int) -> None:
    call = partial(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(region), data)
    others = [_pool(os.getpid(), num_threads - 1).submit(call) for _ in range(num_threads - 1)]
    call()
    for other in others:
        other.result()


def _worker(waiting: Iterator[tuple], finished: list, errors: list) -> Iterator[None]:
    """Run calls until there are none. An exception cannot pass through OpenMP, and a signal is
    handled between any two steps of Python, the first of a function too: a generator that has begun
    is already inside its ``try``."""
    try:
        yield
        for function, *arguments in waiting:
            if errors:
                return
            function(*arguments)
            finished.append(function)
    except BaseException as error:
        errors.append(error)


def _run_side_by_side(workers: list[Iterator[None]]) -> None:
    begin = partial(next, map(next, iter(workers)), None)  # not a step of Python outside a worker
    openmp = _openmp(os.getpid())
    if openmp is not None:
        openmp.GOMP_parallel(_REGION(begin), None, len(workers), 0)
        return
    others = [_pool(os.getpid(), len(workers) - 1).submit(begin) for _ in workers[1:]]
    begin()
    for other in others:
        other.result()


_REGION = ctypes.CFUNCTYPE(None)
_FIRST_PROCESS = os.getpid()


@cache
def _openmp(process: int) -> ctypes.CDLL | None:
    """Return the OpenMP library that torch was linked with: GNU's, or LLVM's and Intel's, which
    have its entry point too. Return ``None`` if there is none, or after a fork, which its threads
    do not survive."""
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
    """Return threads of this process: those of its parent do not survive a fork either."""
    return ThreadPoolExecutor(num_threads, 'graphattn')
