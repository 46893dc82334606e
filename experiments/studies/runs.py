"""Trainings that share their configs, and what they come to over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.summary import read_summary, spread
from experiments.studies.study import CONFIGS, Study

SHIPPED = CONFIGS.parents[1] / 'configs'
ENCODER = '--model.init_args.model.init_args.encoder.init_args'


@dataclass(frozen=True)
class Runs:
    """Runs of :meth:`Study.trained` that share their configs; the same arguments are the same run.

    Args:
        study (Study): Where the runs go.
        name (str): Begins the names of the runs.
        configs (tuple): Of :mod:`experiments.train`, each laid over those before it.
        options (tuple): More of the command line.
    """

    study: Study
    name: str
    configs: tuple[Path | str, ...]
    options: tuple[str, ...] = ()

    def fit(self, name: str, seed: int, *options: str, suffix: str = '') -> Path:
        """Train with more options.

        Args:
            name (str): What the options change, to tell the run apart.
            seed (int): Order of the batches, the start, and whatever is drawn.
            *options: More of the command line.
            suffix (str): Ends the name of the run.
        """
        return self.study.trained(
            f'{self.name}-{name}-{seed}{suffix}', *config_options(*self.configs), *self.options,
            '--seed_everything', str(seed), '--data.init_args.seed', str(seed), *options)


def config_options(*configs: Path | str) -> list[str]:
    """Return options that lay each config, a file or JSON, over those before it."""
    return [part for config in configs for part in ('--config', str(config))]


def over_seeds(
    runs: Iterable[Path], metrics: dict[str, tuple[str, float]],
    spread_of: Callable[[str], str] = lambda title: f'{title.removesuffix(", %")}, spread',
) -> dict[str, float | None]:
    """Return means and deviations on the test part, and the mean density of all heads.

    Args:
        runs (iterable of Path): Trainings that differ in their seed.
        metrics (dict): By its title, a metric of summary.json and what it is multiplied by.
        spread_of (Callable): Gives the title of a deviation.
    """
    reports = [read_summary(run) for run in runs]
    scores: dict[str, float | None] = {}
    for title, (metric, factor) in metrics.items():
        values = [factor * report[metric] for report in reports]
        scores |= {title: statistics.mean(values), spread_of(title): spread(values)}
    # Baselines have no edges.
    density = [100 * value for report in reports for value in report['density'].values()]
    return {**scores, 'density, %': statistics.mean(density) if density else None}


def chosen(what: str, asked: Sequence[str], known: Iterable[str],
           between: str = ', ') -> tuple[str, ...]:
    """Return the names that are asked for.

    Raises:
        ValueError: One is not known; the message calls them ``what``.
    """
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(f"'{what}' must be some of {between.join(known)} "
                         f"(got {between.join(unknown)})")
    return tuple(asked)
