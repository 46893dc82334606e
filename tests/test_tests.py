"""No test fails because the machine is slow or busy, or because of the tests before it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.forked import forked

CLOCKS = {'perf_counter', 'process_time', 'time_ns'}
MIN_TIMEOUT = 300  # seconds, ten times what the longest wait takes on a quiet core


def trees() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(Path(__file__).parent.rglob('*.py')):
        if 'fuzz' not in path.parts:
            yield path, ast.parse(path.read_text())


def test_none_asserts_a_clock():
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                read = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                assert not read & CLOCKS, f'{path}:{node.lineno}'


def test_none_gives_up_early():
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == 'timeout':
                limit = getattr(node.value, 'value', None)
                is_short = type(limit) in (int, float) and limit < MIN_TIMEOUT
                assert not is_short or is_refused(path, node), f'{path}:{node.lineno}'


def is_refused(path: Path, node: ast.keyword) -> bool:
    """Return whether the value is given to see that it is refused."""
    line = path.read_text().splitlines()[node.lineno - 2]
    return 'pytest.raises' in line


@pytest.mark.slow
def test_a_forked_process_frees_no_process_group_of_the_process_before(tmp_path):
    """It would wait for the threads of the group, which do not come along."""
    dist.init_process_group('gloo', store=dist.FileStore(str(tmp_path / 'store'), 1), rank=0,
                            world_size=1)
    cycle = [dist.group.WORLD]
    cycle.append(cycle)
    dist.destroy_process_group()
    gc.disable()
    del cycle
    try:
        done, = forked(gc.collect, timeout=MIN_TIMEOUT)
    finally:
        gc.enable()
    assert done.returncode == 0
