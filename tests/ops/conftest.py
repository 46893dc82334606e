"""Backends, threads and random numbers of tests of operators."""

import pytest
import torch

from graphattn.ops.cpu import schedule
from tests.ops.test_backends import BACKENDS, skip_if_missing


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    return skip_if_missing(request.param)


@pytest.fixture(params=[name for name in BACKENDS if name != 'reference'])
def fast_backend(request) -> str:
    return skip_if_missing(request.param)


@pytest.fixture
def restored_rng():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture
def many_parts(monkeypatch):
    """Divides even the smallest graph among threads."""
    monkeypatch.setattr(schedule, 'GRAIN', 1)


@pytest.fixture
def with_threads(many_parts):
    before = torch.get_num_threads()

    def run(num_threads, function):
        torch.set_num_threads(num_threads)
        return function()

    yield run
    torch.set_num_threads(before)
