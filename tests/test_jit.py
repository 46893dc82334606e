"""Compiled loops: every change of their sources is noticed, and only a missing compiler is a reason
to go on without them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphattn

PACKAGE = Path(graphattn.__file__).parent
WITH_LOOPS = [path for path in PACKAGE.rglob('*.py') if 'jit import' in path.read_text()]
# Loops call functions of their neighbours, and have numbers of theirs.
COMPILED = sorted({path.relative_to(PACKAGE) for loops in WITH_LOOPS
                   for path in loops.parent.glob('*.py')})
SOFTMAX = 'kernels/cpu/softmax.py'


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the library that may be changed."""
    return shutil.copytree(PACKAGE, tmp_path / 'graphattn',
                           ignore=shutil.ignore_patterns('__pycache__'))


def change(source: Path, before: str, after: str) -> None:
    """Changes a file so that neither its size nor its time tells."""
    text, times = source.read_text(), source.stat()
    assert text.count(before) == 1 and len(before) == len(after)
    source.write_text(text.replace(before, after))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    # Python has a cache too, which such a change would deceive.
    environment = os.environ | {'PYTHONDONTWRITEBYTECODE': '1'} | environment
    return subprocess.run([sys.executable, '-c', script], cwd=folder, env=environment, text=True,
                          capture_output=True)


# The cache ###########################################################################


def digest(package: Path) -> str:
    """The stamp of what ``package`` has compiled."""
    spec = importlib.util.spec_from_file_location('jit_of_a_copy', package / '_jit.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SOURCE_DIGEST


def test_the_stamp_changes_with_every_file_beside_compiled_loops(package):
    assert {Path(SOFTMAX), Path('samplers/drawing.py')} < {*COMPILED}
    digests = [digest(package)]
    assert digest(package) == digests[0] == digest(PACKAGE)
    for source in [Path('_jit.py'), *COMPILED]:
        text = (package / source).read_text()
        change(package / source, text, text[:-1] + ' ')  # which ended with a line
        digests.append(digest(package))
    assert len(set(digests)) == len(digests)


SCALED = """
import numpy as np
import torch
import graphattn
from graphattn.kernels.cpu import softmax
from kernel import scaled
terms = softmax.Terms.of(None, None, None, 2., 0., torch.float64, slice(0, 1), 1)
value = scaled(np.ones(16), terms)[0]
hits, misses = (sum(count.values()) for count in scaled.stats[1:])
print(graphattn.__file__, value, hits, misses)
"""
KERNEL = """
from graphattn.kernels.cpu.jit import jit
from graphattn.kernels.cpu.softmax import modify

@jit
def scaled(logit, terms):
    modify(logit, terms, 0, len(logit), 0)
    return logit
"""


@pytest.mark.slow
def test_a_changed_function_is_compiled_again_with_those_that_call_it(package):
    """Here a kernel that did not change calls one of another file, which did."""
    folder, source = package.parent, str(package / '__init__.py')
    (folder / 'kernel.py').write_text(KERNEL)

    def run_kernel() -> list[str]:
        result = run(SCALED, folder, NUMBA_CACHE_DIR=str(folder / 'cache'))
        assert result.returncode == 0, result.stderr
        return result.stdout.split()

    assert run_kernel() == [source, '2.0', '0', '1']
    assert run_kernel() == [source, '2.0', '1', '0']  # nothing was compiled
    change(package / SOFTMAX, 'logit[e] *= scale', 'logit[e] -= scale')
    assert run_kernel() == [source, '-1.0', '0', '1']


# What slower ways are for ############################################################


WITHOUT_THE_FUNCTION = """
import ctypes, warnings
import numba, torch

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name == 'sched_yield':
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library
from graphattn.patterns import Star
graph, x = Star().build(100), torch.randn(100, 1, 4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    from graphattn.functional import edge_attention
    outs = [edge_attention(x, x, x, graph) for _ in range(3)]
torch.testing.assert_close(outs[2], edge_attention(x, x, x, graph, backend='reference'))
print(*(warning.message for warning in caught if 'numba' in str(warning.message)), sep='\\n')

def use(): edge_attention(x, x, x, graph, backend='numba')
def load(): import graphattn.kernels.cpu
for attempt in (use, load, use):
    try:
        attempt()
    except ImportError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == 'win32', reason='the function has another name there')
def test_where_the_system_lacks_a_function_auto_warns_once_and_numba_raises():
    result = run(WITHOUT_THE_FUNCTION, PACKAGE.parent)
    assert result.returncode == 0, result.stderr
    warning, *errors = result.stdout.splitlines()
    assert warning.startswith("backend 'numba' cannot be had, and 'auto' takes slower ones: ")
    message = ("compiled loops need the function 'sched_yield' of the operating system, which this "
               "one lacks")
    assert warning.endswith(message) and errors == [message] * 3


def test_a_fault_of_our_own_is_not_taken_for_a_missing_compiler(package):
    change(package / SOFTMAX, 'import whole_vectors', 'import whole_vectorr')
    result = run('import graphattn.functional', package.parent)
    assert result.returncode == 1
    assert "ImportError: cannot import name 'whole_vectorr'" in result.stderr
    assert 'pip install' not in result.stderr and 'slower ones' not in result.stderr
