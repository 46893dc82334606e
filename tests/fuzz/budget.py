"""How many cases a test generates."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

TIMES = 'GRAPHATTN_FUZZ_TIMES'  # the variable that makes a run longer


def cases(number: int) -> settings:
    """As many generated cases in a test run, the same each time; new and more of them in
    ``python -m tests.fuzz``."""
    return settings(
        max_examples=number * int(os.environ.get(TIMES, 1)), derandomize=TIMES not in os.environ,
        deadline=None, database=None, print_blob=True,
        phases=set(Phase) - {Phase.explain}, suppress_health_check=list(HealthCheck))
