"""Threads for compiled functions, which run without the lock of Python's interpreter."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch


def run_calls(calls: list[tuple]) -> None:
    """Run the calls ``(function, *arguments)`` in parallel, in as many threads as torch uses.

    With OpenMP, the calls run in torch's own threads. Torch's threads spin for some ms after every
    operation of torch, so other threads would compete with them for cores.

    This function returns when all calls have returned. If a call or a signal handler raises an
    exception, no further calls are started. The exception is raised here after the running calls
    have ended.

    A forked process hangs here, as in torch's own operations, if torch had started threads before
    the fork and the process imports this module after the fork. Import the module before the fork,
    or spawn processes.

    Raises:
        RuntimeError: A call has not run, which is a bug.
    """
    waiting, finished, errors = iter(calls), [], []
    workers = [_worker(waiting, finished, errors)
               for _ in range(min(len(calls), torch.get_num_threads()))]
    for worker in workers:
        next(worker)
    if len(workers) > 1:
        _run_side_by_side(workers)
    for worker in workers:  # workers that no thread has started
        next(worker, None)
    if errors:
        raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
    if len(finished) < len(calls):
        raise RuntimeError(f"a thread ended before its calls had run ({len(finished)} of "
                           f"{len(calls)} calls returned); this is a bug of graphattn")


def start_of_threads() -> int:
    """Return the address of a C function ``start(region, data, num_threads, flags)``."""
    # compiled code runs region(data) by it, in the threads of run_calls
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
    # Exceptions must not propagate through OpenMP, and Python may handle a signal before the first
    # statement of a function. A generator that has yielded is already inside its ``try``.
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
    begin = partial(next, map(next, iter(workers)), None)  # runs no Python code outside of a worker
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
    # Threads of GNU's, LLVM's and Intel's library, with one entry point, do not survive a fork.
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
    # a pool for each process, because threads do not survive a fork
    return ThreadPoolExecutor(num_threads, 'graphattn')
