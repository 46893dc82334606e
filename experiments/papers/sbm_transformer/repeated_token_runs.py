"""Trainings of the studies of repeated tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.papers.figures import history
from experiments.papers.runs import SHIPPED, config_options, over_seeds
from experiments.papers.study import Study
from experiments.runs.summary import read_summary, spread

DENSITY = 'train/density/layer0/all_heads'


def train(study: Study, name: str, config: str, seed: int, data: dict[str, int],
          encoder: dict[str, Any], *, epochs: int, lr: float = 1e-3) -> Path:
    """Train one model of the study, and return the folder of its run.

    Args:
        study: The study of the run.
        name: Name of the run.
        config: A config of ``experiments/configs/duplicates``.
        seed: Seed of initialisation, sequences and sampled edges.
        data: Arguments of :class:`experiments.tasks.Duplicates` that override the config.
        encoder: Arguments of the encoder that override the config.
        epochs: Number of evaluations during the training.
        lr: Peak learning rate.
    """
    model = {'init_args': {'encoder': {'init_args': encoder}}}
    over = {'trainer': {'max_epochs': epochs}, 'model': {'init_args': {'lr': lr, 'model': model}},
            'data': {'init_args': {**data, 'seed': seed}}}
    configs = config_options(SHIPPED / 'duplicates' / f'{config}.yaml', json.dumps(over))
    return study.trained(f'repeated_tokens-{name}-{seed}', *configs, '--seed_everything', str(seed))


def means(runs: Sequence[Path]) -> dict[str, float | None]:
    """Return the means of the test metrics over several runs, by name."""
    density = [100 * value for run in runs for value in read_summary(run)['density'].values()]
    return {**over_seeds(runs, {'accuracy, %': ('accuracy', 100.), 'loss': ('loss', 1.)}),
            'density, spread': spread(density)}


def has_dead_heads(run: Path) -> bool:
    """Return whether a run has lost its edges: whether the final density of its graphs is less than
    half of its largest density."""
    _, density = history(run, DENSITY)
    return density[-1] < max(density) / 2


