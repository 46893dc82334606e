"""Compiled loops: every change of their sources is noticed, and only a missing compiler is a reason
to go on without them."""

import importlib.util
import logging
import os
import shutil
import stat
import sys
import tempfile
from itertools import product
from pathlib import Path

import numba
import pytest
import torch

import graphattn
from graphattn import _jit
from graphattn.compile import NUM_NODES, OPERATIONS
from tests.forked import run_anew

PACKAGE = Path(graphattn.__file__).parent
WITH_LOOPS = [path for path in PACKAGE.rglob('*.py') if 'jit import' in path.read_text()
              and path.name != 'extension.py']  # which has none of its own
# Loops call functions of their neighbours, and have numbers of theirs.
COMPILED = sorted({path.relative_to(PACKAGE) for loops in WITH_LOOPS for path in loops.parent.glob(
    'cpu*.py' if loops.name.startswith('cpu') else '*.py')})
SOFTMAX = 'ops/cpu/softmax.py'


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
    shutil.rmtree(source.parent / '__pycache__', ignore_errors=True)  # Python would not notice


# The cache ###########################################################################


def digest(package: Path) -> str:
    """The stamp of what ``package`` has compiled."""
    spec = importlib.util.spec_from_file_location('jit_of_a_copy', package / '_jit.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SOURCE_DIGEST


@pytest.mark.slow
def test_the_stamp_changes_with_every_file_beside_compiled_loops(package):
    assert {Path(SOFTMAX), Path('ops/sample/cpu/drawing.py')} < {*COMPILED}
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
from graphattn.ops.cpu import softmax
from kernel import scaled
terms = softmax.Terms.of(None, None, None, 2., 0., torch.float64, slice(0, 1), 1)
value = scaled(np.ones(16), terms)[0]
hits, misses = (sum(count.values()) for count in scaled.stats[1:])
print(graphattn.__file__, value, hits, misses)
"""
KERNEL = """
from graphattn.ops.cpu.jit import jit
from graphattn.ops.cpu.softmax import modify

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
        result = run_anew(SCALED, folder=folder, NUMBA_CACHE_DIR=str(folder / 'cache'))
        assert result.returncode == 0, result.stderr
        return result.stdout.split()

    assert run_kernel() == [source, '2.0', '0', '1']
    change(package / SOFTMAX, 'logit[e] *= scale', 'logit[e] -= scale')
    assert run_kernel() == [source, '-1.0', '0', '1']


SOURCE = """
def add(x, y):
    return x + y
"""


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Gives a function to be compiled, each time as in a new process."""
    monkeypatch.setattr(_jit, '_TOLD', set())
    monkeypatch.setattr(numba.config, 'CACHE_DIR', str(tmp_path / 'cache'))
    (tmp_path / 'source.py').write_text(SOURCE)

    def begin():
        spec = importlib.util.spec_from_file_location('source', tmp_path / 'source.py')
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return _jit.jit()(module.add)
    return begin


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """Return the messages of the library."""
    messages = []
    monkeypatch.setattr(logging.getLogger('graphattn'), 'handle',
                        lambda record: messages.append(record.getMessage()))
    return messages


def hits_and_misses(compiled) -> list[int]:
    return [sum(count.values()) for count in compiled.stats[1:]]


@pytest.mark.slow
def test_a_changed_file_of_others_is_compiled_again(add, tmp_path):
    """Also where not the function itself has changed, but a file of one that it may call."""
    (tmp_path / 'called.py').write_text('one = 1')
    assert add()(1, 2) == 3
    for source, before, after in (('source.py', '+', '*'), ('called.py', '1', '2')):
        change(tmp_path / source, before, after)
        _jit.digest_beside.cache_clear()  # which a new process begins without
        compiled = add()
        assert compiled(1, 2) == 2 and hits_and_misses(compiled) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize('size', [0, 100])
def test_a_damaged_file_is_compiled_again(add, tmp_path, size):
    add()(1, 2)
    path, = tmp_path.glob('cache/*/*')
    path.write_bytes(path.read_bytes()[:size])
    for misses in (1, 0):
        compiled = add()
        assert compiled(1, 2) == 3 and hits_and_misses(compiled) == [1 - misses, misses]


@pytest.mark.skipif(sys.platform == 'win32', reason='has no limit on the size of files')
def test_a_full_disk_is_told_and_no_error(add, tmp_path, told):
    import resource
    compiled, limits = add(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert compiled(1, 2) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert 'NUMBA_CACHE_DIR' in told[-1] and 'cannot be cached' in told[-1]
    assert not list(tmp_path.glob('cache/*/*'))


@pytest.fixture
def no_usual_folder(tmp_path, monkeypatch):
    """A file stands where each of numba's folders would be; gives the temporary folder."""
    for name in ('cache', '__pycache__'):
        (tmp_path / name).write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
    (tmp_path / 'temporary').mkdir()
    return tmp_path / 'temporary'


@pytest.mark.skipif(sys.platform != 'linux', reason='the cache of a user is elsewhere')
def test_where_no_folder_can_be_written_to_a_temporary_one_of_the_user_is_taken(
        add, no_usual_folder, told):
    assert add()(1, 2) == 3
    own, = no_usual_folder.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert str(own) in told[0]
    again = add()
    assert again(1, 2) == 3 and hits_and_misses(again) == [1, 0]


@pytest.mark.skipif(sys.platform != 'linux', reason='the cache of a user is elsewhere')
def test_a_user_without_a_name_and_a_home_has_a_temporary_folder(
        add, no_usual_folder, tmp_path, monkeypatch):
    """Containers that run under any number have no such user."""
    def unknown(uid):
        raise KeyError(f'getpwuid(): uid not found: {uid}')

    monkeypatch.setattr('pwd.getpwuid', unknown)
    for name in ('HOME', 'XDG_CACHE_HOME', 'LOGNAME', 'USER', 'LNAME', 'USERNAME'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert add()(1, 2) == 3 and not (tmp_path / '~').exists()
    own, = no_usual_folder.iterdir()
    assert own.name == f'graphattn-{os.getuid()}'


@pytest.mark.skipif(sys.platform != 'linux', reason='the cache of a user is elsewhere')
def test_a_temporary_folder_of_others_is_not_read(add, no_usual_folder, told):
    add()
    own, = no_usual_folder.iterdir()
    own.chmod(0o777)
    told.clear()
    assert add()(1, 2) == 3 and not list(own.glob('*/*'))
    assert 'NUMBA_CACHE_DIR' in told[0]


FIRST_USES = """
import torch
from graphattn.functional import edge_attention, edge_feature_attention
from graphattn.patterns import SlidingWindow
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg
for num_tokens in (300, 70_000):
    graph = SlidingWindow(3).build(num_tokens)
    tokens = [torch.randn(num_tokens, 2, 24, requires_grad=True) for _ in range(3)]
    bias = torch.randn(graph.num_edges, 2, requires_grad=True)
    for options in ({}, {'hops': 3, 'teleport': 0.2}):
        edge_attention(*tokens, graph, edge_bias=bias, dropout_p=0.1, backend='numba',
                       **options).sum().backward()
    attr, projection = (torch.randn(shape, requires_grad=True)
                        for shape in ((graph.num_edges, 3), (2, 24, 3)))
    edge_feature_attention(*tokens, graph, attr, projection, backend='numba').sum().backward()
    model = FactorModel(torch.rand(5, 3), torch.rand(3, 3) / 40, torch.rand(num_tokens, 3))
    for method in ('compare', 'thin'):
        sample_bernoulli(model, method=method)
    sample_fastrg(model)
"""


@pytest.mark.slow
def test_after_the_command_first_uses_compile_nothing():
    """The usual folder has most functions already, but no process of its own."""
    for compiles, num_nodes in product(OPERATIONS, NUM_NODES):
        compiles(num_nodes, torch.float32)
    result = run_anew(FIRST_USES)
    assert result.returncode == 0 and 'compiles' not in result.stderr, result.stderr


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
def load(): import graphattn.ops.cpu.backend
for attempt in (use, load, use):
    try:
        attempt()
    except ImportError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == 'win32', reason='the function has another name there')
def test_where_the_system_lacks_a_function_auto_warns_once_and_numba_raises():
    result = run_anew(WITHOUT_THE_FUNCTION)
    assert result.returncode == 0, result.stderr
    warning, *errors = result.stdout.splitlines()
    assert warning.startswith("backend 'numba' is unavailable, so backend='auto'")
    message = ("compiled loops need the function 'sched_yield' of the operating system, which this "
               "one lacks")
    assert warning.endswith(message) and errors == [message] * 3


@pytest.mark.slow
def test_a_fault_of_our_own_is_not_taken_for_a_missing_compiler(package):
    change(package / SOFTMAX, 'import whole_vectors', 'import whole_vectorr')
    result = run_anew('import graphattn.functional', folder=package.parent)
    assert result.returncode == 1
    assert "ImportError: cannot import name 'whole_vectorr'" in result.stderr
    assert 'pip install' not in result.stderr and 'slower ones' not in result.stderr
