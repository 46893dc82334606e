"""Threads for compiled functions, which release the interpreter's lock."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch


def run_calls(calls: list[tuple]) -> None:
    """Run the calls ``(function, *arguments)`` in parallel, with the number of threads of torch.

    With OpenMP these are torch's own threads. They spin for some ms after every operation of torch,
    so other threads would compete with them for cores.

    Returns when all calls have returned. An exception in a call, or in a signal handler while calls
    run, is raised here after the running calls; no other calls are started. A process that is
    forked after torch has started its threads, and imports this module only then, hangs, as it
    would in torch's own operations: import the module before, or spawn.

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
    for worker in workers:  # workers without a thread
        next(worker, None)
    if errors:
        raise next((error for error in errors if not isinstance(error, Exception)), errors[0])
    if len(finished) < len(calls):
        raise RuntimeError(f"only {len(finished)} of {len(calls)} calls have returned")


def start_of_threads() -> int:
    """Return the address of ``start(region, data, num_threads, flags)``, with which compiled code
    calls ``region(data)`` in up to ``num_threads`` threads, those of :func:`run_calls`."""
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
    """Run calls until none are left. Exceptions must not propagate through OpenMP, and signals may
    be handled before the first statement of a function. Therefore this is a generator, which is
    inside its ``try`` once it has started."""
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
    begin = partial(next, map(next, iter(workers)), None)  # no Python code outside a worker
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
    """Return the OpenMP library of torch: GNU's, or LLVM's and Intel's, which have the same entry
    point. Return ``None`` if there is none, or after a fork, because its threads do not survive."""
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
    """Return the thread pool of this process, because the parent's threads do not survive a
    fork."""
    return ThreadPoolExecutor(num_threads, 'graphattn')
