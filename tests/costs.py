"""The growth of a cost with the size of its input."""

import time
from collections.abc import Callable

MAX = 8  # times as long with four times the input, of which a busy machine takes some


def is_linear(one: Callable, many: Callable, floor: float) -> bool:
    """Return whether ``many`` takes a few times as long as ``one``, which has a quarter of the
    input, or as ``floor`` in seconds: what begins once. Processor time has nothing of what else
    the machine does, but for single measurements; what is not linear fails all."""
    return any(_seconds(many) <= MAX * max(_seconds(one), floor) for _ in range(5))


def _seconds(work: Callable) -> float:
    times = []
    for _ in range(3):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)
