"""Numbers of cases that tests generate."""

import os
from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase, settings

TIMES = 'GRAPHATTN_FUZZ_TIMES'  # the variable that makes a run longer
CASE = 'GRAPHATTN_FUZZ_CASE'  # the variable that holds the one case to run, as hypothesis prints it


def cases(number: int) -> Callable[[Callable], Callable]:
    """So many generated cases, times its ``--times`` and new ones, in ``python -m tests.fuzz``;
    a quarter of them, but two where there are, in a test run, the same each time."""
    def decorate(test: Callable) -> Callable:
        if CASE in os.environ:
            blob = os.environ[CASE].encode()
            test = hypothesis.reproduce_failure(hypothesis.__version__, blob)(test)
        times = os.environ.get(TIMES)
        return settings(
            max_examples=(max((number + 3) // 4, min(number, 2)) if times is None
                          else number * int(times)),
            derandomize=times is None, deadline=None, database=None, print_blob=True,
            phases=set(Phase) - {Phase.explain}, suppress_health_check=list(HealthCheck))(test)
    return decorate
