"""Trainings that share their configs, and what they come to over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.papers.study import ScaleName, Study
from experiments.runs.summary import read_summary, spread
from graphattn.patterns import Pattern

SHIPPED = Path(__file__).parents[1] / 'configs'
ENCODER = '--model.init_args.model.init_args.encoder.init_args'
SOURCE = f'{ENCODER}.source'


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


def at_scale(folder: Path, scale: ScaleName, name: str) -> tuple[Path, ...]:
    """Return the configs of a scale in a folder; those for smoke tests say what differs from the
    small ones, if anything does."""
    scales = ('small', 'smoke') if scale == 'smoke' else (scale,)
    return tuple(path for one in scales if (path := folder / one / name).exists())


def pattern_source(pattern: Pattern | str | Sequence[Pattern | str], **arguments) -> dict:
    """Return the config of a source whose edges are those of a pattern, or of one for each head."""
    said = list(map(str, pattern)) if isinstance(pattern, list | tuple) else str(pattern)
    return {'class_path': 'graphattn.sources.PatternSource',
            'init_args': {'pattern': said, **arguments}}


def over_seeds(runs: Iterable[Path],
               metrics: dict[str, tuple[str, float]]) -> dict[str, float | None]:
    """Return means and deviations on the test part, and the mean density of all heads.

    Args:
        runs (iterable of Path): Trainings that differ in their seed.
        metrics (dict): By its column, a metric of summary.json and what it is multiplied by.
    """
    reports = [read_summary(run) for run in runs]
    scores: dict[str, float | None] = {}
    for column, (metric, factor) in metrics.items():
        scores |= mean_and_spread(column, [factor * report[metric] for report in reports])
    # Baselines have no edges.
    density = [100 * value for report in reports for value in report['density'].values()]
    return {**scores, 'density, %': statistics.mean(density) if density else None}


def mean_and_spread(column: str, values: Sequence[float],
                    name: str | None = None) -> dict[str, float | None]:
    """Return the mean and the deviation of values of several seeds, as two columns of a table.

    Args:
        column (str): Title of the mean.
        values (sequence of float): There may be none.
        name (str, optional): Begins the title of the deviation, as in :func:`spread_of`.
    """
    return {column: statistics.mean(values) if values else None,
            spread_of(name or column): spread(values)}


def spread_of(column: str) -> str:
    """Return the title of the deviation of a column: that of ``accuracy, %`` is ``accuracy,
    spread``."""
    return f'{column.partition(",")[0]}, spread'


def chosen(what: str, asked: Sequence[str], known: Iterable[str],
           between: str = ', ', at: str = '') -> tuple[str, ...]:
    """Return the names that are asked for.

    Raises:
        ValueError: One is not known; the message calls them ``what``.
    """
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(f"'{what}' must be some of {between.join(known)}{at} "
                         f"(got {between.join(unknown)})")
    return tuple(asked)
