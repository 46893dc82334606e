"""Tests of generated cases are slow. How many cases a run had, and the one command that runs a
failing one again."""

import re
from functools import wraps
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BLOB = re.compile(r"@reproduce_failure\('[^']*', b'([^']*)'\)")


def pytest_itemcollected(item):
    item.add_marker('slow')


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Counts how often hypothesis calls the test."""
    handle, count = getattr(item.obj, 'hypothesis', None), 0
    if handle is None:
        return (yield)
    test = handle.inner_test

    @wraps(test)
    def counted(*args, **kwargs):
        nonlocal count
        count += 1
        return test(*args, **kwargs)

    handle.inner_test = counted
    try:
        return (yield)
    finally:
        handle.inner_test = test
        item.user_properties.append(('cases', count))


def pytest_terminal_summary(terminalreporter):
    reports = [report for group in ('passed', 'failed') for report in
               terminalreporter.stats.get(group, []) if is_ours(report)]
    num_cases = sum(value for report in reports for name, value in report.user_properties
                    if name == 'cases')
    if num_cases:
        terminalreporter.write_line(f'{num_cases} generated cases')
    for report in reports:
        blob = BLOB.search(report.longreprtext)
        if report.failed and blob:
            terminalreporter.write_line(
                f"again: python -m tests.fuzz --test '{report.nodeid}' --case {blob[1]}")


def is_ours(report) -> bool:
    return HERE.name in Path(report.nodeid.split('::')[0]).parts
