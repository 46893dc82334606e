"""Freed memory is kept inside the context, and given back behind it."""

import subprocess
import sys

import pytest

from graphattn import freed_memory
from graphattn.freed_memory import keeping_freed_memory

# In a process of its own: where arrays lie in a heap that others have used is chance.
SCRIPT = """
import ctypes, resource, runpy, sys
keeping_freed_memory = runpy.run_path(sys.argv[1])['keeping_freed_memory']
library, size = ctypes.CDLL(None), 64 * 2**20
library.malloc.restype = ctypes.c_void_p

def allocate_and_free():
    memory = ctypes.c_void_p(library.malloc(ctypes.c_size_t(size)))
    ctypes.memset(memory, 1, size)
    library.free(memory)

def new_pages():
    allocate_and_free()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    allocate_and_free()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()

usual = new_pages()
with keeping_freed_memory() as is_kept:
    print(is_kept, usual, new_pages())
    kept = resident()
print(kept - resident() > size / 2)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads what Linux says of processes')
def test_pages_are_kept_inside_and_given_back_behind():
    ended = subprocess.run([sys.executable, '-c', SCRIPT, freed_memory.__file__], text=True,
                           capture_output=True, check=True)
    is_kept, usual, inside, are_given_back = ended.stdout.split()
    if is_kept == 'False':
        pytest.skip("the C library is not GNU's")
    assert int(usual) > 1000 and int(inside) < int(usual) / 50
    assert are_given_back == 'True'


def test_other_systems_do_as_they_do(monkeypatch):
    monkeypatch.setattr('ctypes.CDLL', lambda name: object())
    with keeping_freed_memory() as is_kept:
        assert not is_kept
