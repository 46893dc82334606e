"""Settings that every test shares."""

import gc
import os
import signal
import tempfile
from multiprocessing import get_context
from pathlib import Path
from zlib import crc32

import pytest

from tests.libraries import spare

# pytest-xdist runs one process per core: their threads must not fight. Set before torch is loaded,
# and inherited by the processes that tests start.
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('MKL_NUM_THREADS', '1')
# Tests that ask for several threads wait for them without taking a core from the other process:
# OpenMP's own way, to spin, takes six times as long as what such small tests compute.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')

# Torch keeps what it has compiled by a key that lacks the instructions that this variable allows.
if capability := os.environ.get('ATEN_CPU_CAPABILITY'):
    os.environ.setdefault('TORCHINDUCTOR_CACHE_DIR',
                          str(Path(tempfile.gettempdir()) / f'torchinductor_{capability}'))

# Torch would look for garbage after each compilation, for 15 ms.
os.environ.setdefault('TORCH_DYNAMO_RUN_GC_AFTER_COMPILE', '0')

# What a shell starts in the background, or under nohup, ignores some of them.
for number, handler in ((signal.SIGINT, signal.default_int_handler),
                        (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL)):
    signal.signal(number, handler)

HAS_GPU = Path('/dev/nvidiactl').exists()
# Kernels of a GPU are computed in numpy where there is none. Set before they are loaded.
if not HAS_GPU:
    os.environ.setdefault('TRITON_INTERPRET', '1')

# Collecting leaves millions of objects that live to the end. Not to look for garbage among them
# halves the time of collection, and spares every test a look at what others are made of.
gc.disable()
ALLOCATIONS = 10_000  # between two looks at the youngest objects: torch makes many that stay


def pytest_collection_finish():
    import torch
    if not HAS_GPU:  # torch writes down the stack for each kind of device that is not there: 1 ms
        torch.manual_seed = torch.default_generator.manual_seed
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure():
    gc.freeze()  # pytest would look for garbage five times among all that lives to the end


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Random numbers are those of the test, whatever ran before it in its process."""
    import torch
    torch.manual_seed(crc32(item.nodeid.encode()))
    spare()


@pytest.fixture
def clean_dynamo():
    import torch
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def measured_in_forks(monkeypatch):
    """Other processes would import for ten seconds what this one has. Times and peaks of a fork are
    nobody's: it has the memory that this one has freed, and no peak above it."""
    for name in 'get_context', 'forkserver':
        monkeypatch.setattr(f'experiments.benchmarks.measure.{name}',
                            lambda *start: get_context('fork'))
    monkeypatch.setattr('experiments.benchmarks.measure.A_ROUND', 0.)
