"""Trainings that share configs, and means over their seeds."""

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
    """Trainings of a study that share configs, see :meth:`Study.trained`.

    Runs with the same arguments are trained once.

    Args:
        study (Study): The study of the runs.
        name (str): Prefix of the names of the runs.
        configs (tuple): Configs of :mod:`experiments.train`; a later config overrides earlier
            configs.
        options (tuple): Further command-line options.
    """

    study: Study
    name: str
    configs: tuple[Path | str, ...]
    options: tuple[str, ...] = ()

    def fit(self, name: str, seed: int, *options: str, suffix: str = '') -> Path:
        """Train a model with the config called ``name`` and further options, and return the folder
        of the run.

        Args:
            name (str): Part of the run's name that describes the options.
            seed (int): Seed of batches, initialisation and samples.
            *options: Further command-line options.
            suffix (str): Suffix of the name of the run.
        """
        return self.study.trained(
            f'{self.name}-{name}-{seed}{suffix}', *config_options(*self.configs), *self.options,
            '--seed_everything', str(seed), '--data.init_args.seed', str(seed), *options)


def config_options(*configs: Path | str) -> list[str]:
    """Return command-line options that name configs, which are files or JSON text. Later configs
    override earlier configs."""
    return [part for config in configs for part in ('--config', str(config))]


def at_scale(folder: Path, scale: ScaleName, name: str) -> tuple[Path, ...]:
    """Return the config files of a study at a scale, such as ``'small'``. At the scale smoke, a
    second file may change the config ``small``.

    Args:
        folder: The folder of configs, with a folder for each scale.
        scale: The scale.
        name: Name of the config file.
    """
    scales = ('small', 'smoke') if scale == 'smoke' else (scale,)
    return tuple(path for one in scales if (path := folder / one / name).exists())


def pattern_source(pattern: Pattern | str | Sequence[Pattern | str], **arguments) -> dict:
    """Return the config of a PatternSource with one pattern for all heads, or with a pattern for
    each head. ``arguments`` are further arguments of the source."""
    said = list(map(str, pattern)) if isinstance(pattern, list | tuple) else str(pattern)
    return {'class_path': 'graphattn.sources.PatternSource',
            'init_args': {'pattern': said, **arguments}}


def over_seeds(runs: Iterable[Path],
               metrics: dict[str, tuple[str, float]]) -> dict[str, float | None]:
    """Return the means and deviations of test metrics over runs, and the mean density of all heads,
    as columns of a table.

    Args:
        runs (iterable of Path): Trainings that differ in the seed.
        metrics (dict): For each column, the name of a metric in summary.json, and a factor.
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
    """Return the mean and the standard deviation of some values, as two columns of a table.

    Args:
        column (str): Column of the mean.
        values (sequence of float): The values of the seeds; may be empty.
        name (str, optional): Prefix of the column of the deviation, as in :func:`spread_of`.
    """
    return {column: statistics.mean(values) if values else None,
            spread_of(name or column): spread(values)}


def spread_of(column: str) -> str:
    """Return the name of the column with the deviation of a column: ``accuracy, spread`` for
    ``accuracy, %``."""
    return f'{column.partition(",")[0]}, spread'


def chosen(what: str, asked: Sequence[str], known: Iterable[str],
           between: str = ', ', at: str = '') -> tuple[str, ...]:
    """Return the requested names as a tuple, after checking that all are known.

    Args:
        what: Name of the command-line option, for the message.
        asked: The requested names.
        known: The known names.
        between: Separator of the names in the message.
        at: Text after the known names in the message.

    Raises:
        ValueError: A name is unknown; the message names the argument ``what``.
    """
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(f"'{what}' must contain only names from {between.join(known)}{at} (got "
                         f"{between.join(unknown)})")
    return tuple(asked)
