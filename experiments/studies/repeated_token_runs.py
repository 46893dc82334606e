"""Trainings of the studies of repeated tokens, and their curves."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments.runs.summary import read_summary, spread
from experiments.studies.runs import SHIPPED, config_options, over_seeds
from experiments.studies.study import Study

DENSITY = 'train/density/layer0/all_heads'


def train(study: Study, name: str, config: str, seed: int, data: dict[str, int],
          encoder: dict[str, Any], *, epochs: int, lr: float = 1e-3) -> Path:
    """Train one model.

    Args:
        study: Whose scale and folder.
        name: Of the run.
        config: One of ``experiments/configs/duplicates``.
        seed: Start of the parameters, sequences and sampled edges.
        data: Arguments of :class:`experiments.tasks.Duplicates` that differ from the config's.
        encoder: Those of the encoder.
        epochs: How many evaluations there are on the way.
        lr: Peak learning rate.
    """
    model = {'init_args': {'encoder': {'init_args': encoder}}}
    over = {'trainer': {'max_epochs': epochs}, 'model': {'init_args': {'lr': lr, 'model': model}},
            'data': {'init_args': {**data, 'seed': seed}}}
    configs = config_options(SHIPPED / 'duplicates' / f'{config}.yaml', json.dumps(over))
    return study.trained(f'repeated_tokens-{name}-{seed}', *configs, '--seed_everything', str(seed))


def means(runs: Sequence[Path]) -> dict[str, float | None]:
    """Return means over several seeds on the test part."""
    density = [100 * value for run in runs for value in read_summary(run)['density'].values()]
    return {**over_seeds(runs, {'accuracy, %': ('accuracy', 100.), 'loss': ('loss', 1.)}),
            'density, spread': spread(density)}


def has_dead_heads(run: Path) -> bool:
    """Return whether a run ends with less than half of its highest density."""
    _, density = history(run, DENSITY)
    return density[-1] < max(density) / 2


def history(run: Path, column: str) -> tuple[list[int], list[float]]:
    """Return steps, and a column of the run's metrics there; empty if it has none."""
    with (run / 'metrics.csv').open(newline='', encoding='utf-8') as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return [int(row['step']) for row in rows], [float(row[column]) for row in rows]


def draw_curves(axes: Axes, runs: Sequence[Path], column: str, factor: float = 1.,
                **style: Any) -> None:
    """Draw a line for each seed; the first has the label."""
    label = style.pop('label', None)
    for number, run in enumerate(runs):
        steps, values = history(run, column)
        axes.plot(steps, [factor * value for value in values],
                  label=None if number else label, **style)
