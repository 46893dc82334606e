"""Runs with several seeds, and the mean and standard deviation of their results."""

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from experiments.runs.once import train_once
from experiments.runs.summary import read_summary, spread, write_summary
from experiments.runs.tables import report


def train_seeds(train: Callable[[list[str]], None], options: Sequence[str], folder: Path,
                seeds: Sequence[int]) -> None:
    """Train into ``folder/seedN`` for each seed N, unless finished, and report means."""
    runs = {seed: folder / f'seed{seed}' for seed in seeds}
    for seed, run in runs.items():
        with _as_a_process_of_its_own():
            train_once(partial(_train, train), run, [*options, '--seed_everything', str(seed)],
                       f'\nseed {seed}')
    _report({seed: read_summary(run) for seed, run in runs.items()}, folder)


def _train(train: Callable[[list[str]], None], arguments: list[str]) -> None:
    sys.argv = [sys.argv[0], *arguments]  # Lightning passes these arguments to the other processes
    train(arguments)


@contextmanager
def _as_a_process_of_its_own() -> Iterator[None]:
    """Return a context for one run among several that restores the command line and Lightning's
    environment, and closes torch's process group."""
    arguments, environment = sys.argv, dict(os.environ)
    try:
        yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)
        if distributed.is_initialized():
            distributed.destroy_process_group()


@rank_zero_only
def _report(summaries: dict[int, dict], folder: Path) -> None:
    # Metrics that are integers are counts that all seeds share: parameters, epochs, threads.
    measured = {seed: {name: value for name, value in summary.items() if isinstance(value, float)}
                for seed, summary in summaries.items()}
    names = list(dict.fromkeys(name for row in measured.values() for name in row))
    values = {name: [row[name] for row in measured.values() if name in row] for name in names}
    summary = {'mean': {name: statistics.mean(some) for name, some in values.items()},
               'standard deviation': {name: spread(some) for name, some in values.items()}}
    print()
    report([{'seed': seed, **row} for seed, row in [*measured.items(), *summary.items()]],
           'seeds', folder)
    write_summary(folder, {'seeds': list(summaries), **summary})
