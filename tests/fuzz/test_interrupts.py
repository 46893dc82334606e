"""Signals at random moments: none is swallowed, and none leaves a result unwritten."""

import json
import os
import subprocess
import sys

import pytest

from tests.fuzz.budget import TIMES


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='sends signals from a fork')
@pytest.mark.parametrize('limit', ['4', pytest.param('1', marks=pytest.mark.skipif(
    TIMES not in os.environ, reason='for python -m tests.fuzz'))])
def test_each_signal_is_raised_once_and_what_returns_is_whole(limit):
    """OpenMP may grant fewer threads than it is asked for."""
    times = int(os.environ.get(TIMES, 1))
    result = subprocess.run(
        [sys.executable, '-m', 'tests.fuzz.interrupted', str(8 * times), str(times)], text=True,
        capture_output=True,
        env={**os.environ, 'OMP_THREAD_LIMIT': limit, 'OMP_WAIT_POLICY': 'passive'})
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert outcomes == {threads: {'raised': 8 * times} for threads in '124'}
