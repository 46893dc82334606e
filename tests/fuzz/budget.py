"""How many cases a test generates."""

from __future__ import annotations

import os
from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase, settings

TIMES = 'GRAPHATTN_FUZZ_TIMES'  # the variable that makes a run longer
CASE = 'GRAPHATTN_FUZZ_CASE'  # the variable that holds the one case to run, as hypothesis prints it


def cases(number: int) -> Callable[[Callable], Callable]:
    """So many generated cases, and new ones, in each round of ``python -m tests.fuzz``; half of them
    in a test run, the same each time."""
    def decorate(test: Callable) -> Callable:
        if CASE in os.environ:
            blob = os.environ[CASE].encode()
            test = hypothesis.reproduce_failure(hypothesis.__version__, blob)(test)
        return settings(
            max_examples=number * int(os.environ[TIMES]) if TIMES in os.environ else (number + 1) // 2,
            derandomize=TIMES not in os.environ, deadline=None, database=None, print_blob=True,
            phases=set(Phase) - {Phase.explain}, suppress_health_check=list(HealthCheck))(test)
    return decorate
