"""Freed memory is kept inside the context, and given back behind it."""

import resource

import pytest
import torch

from graphattn.freed_memory import keeping_freed_memory
from tests.forked import forked

SIZE = 16 * 2**20  # floats, 64 MiB


def new_pages() -> int:
    """How many are needed for a large tensor, when others of its size have just been freed."""
    for _ in range(6):
        torch.ones(SIZE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(SIZE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    pages = int(open('/proc/self/statm').read().split()[1])
    return pages * resource.getpagesize()


def work():
    torch.set_num_threads(1)
    usual = new_pages()
    with keeping_freed_memory() as is_kept:
        print(is_kept, usual, new_pages())
        kept = resident()
    print(kept - resident() > 32 * 2**20)


def test_pages_are_kept_inside_and_given_back_behind():
    ended, = forked(work)
    assert ended.returncode == 0, ended.stderr
    is_kept, usual, inside, are_given_back = ended.stdout.split()
    if is_kept == 'False':
        pytest.skip("the C library is not GNU's")
    assert int(inside) < int(usual) / 50
    assert are_given_back == 'True'


def test_other_systems_do_as_they_do(monkeypatch):
    monkeypatch.setattr('ctypes.CDLL', lambda name: object())
    with keeping_freed_memory() as is_kept:
        assert not is_kept
