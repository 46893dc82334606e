r"""Estimators of the gradient of a block model, and whether they keep the edges of the model.

    python -m experiments.papers.ours.estimators --scale small

An estimator defines the gradient of a loss in the probabilities of sampled edges (derived in
:func:`graphattn.samplers.straight_through`). The task of repeated tokens requires all edges
(:mod:`experiments.papers.sbm_transformer.repeated_tokens`), so an estimator should find and keep
all edges. Each estimator is trained with both distributions and several seeds.

A run has *lost* its edges if its final density is less than half of its maximum. It has *solved*
the task if its final accuracy is 99 %. With the distribution of Algorithm 1 (``poisson``), no
density exceeds 63 %. The reference is full attention, which has all edges from the start.

The paper has no such study. The scale ``paper`` has the sizes of its Figure 4. The scale ``small``
has sequences of 32 tokens.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure

from experiments.papers.figures import plot_histories
from experiments.papers.sbm_transformer.repeated_token_runs import (
    DENSITY,
    has_dead_heads,
    means,
    train,
)
from experiments.papers.study import ScaleName, Study
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from graphattn.samplers.straight_through import ESTIMATORS

DISTRIBUTIONS = ('bernoulli', 'poisson')
SEEDS = {'smoke': 1, 'small': 8, 'paper': 8}
LENGTH = {'smoke': 16, 'small': 32, 'paper': 256}
DATA = {'smoke': {'length': 16, 'batch_size': 4, 'steps_per_epoch': 2, 'eval_batches': 1},
        'small': {'length': 32, 'batch_size': 32, 'steps_per_epoch': 75, 'eval_batches': 8},
        'paper': {'batch_size': 256}}
EPOCHS = {'smoke': 2, 'small': 20, 'paper': 20}
RATE = {'smoke': 1e-3, 'small': 2e-3, 'paper': 1e-3}
CLUSTERS = {'smoke': 4, 'small': 16, 'paper': 128}


def main(scale: ScaleName = 'small', seeds: PositiveInt | None = None,
         out: Path = Path('runs/studies')) -> None:
    """Train with every estimator and distribution, and count the runs that keep their edges.

    Args:
        scale: Scale of the study: smoke, small or paper.
        seeds: Number of trainings of each kind.
        out: The folder of all studies.
    """
    study = Study('estimators', scale, out)
    chosen = range(seeds or SEEDS[scale])
    runs = {(distribution,
             estimator): [_train_sampled(study, distribution, estimator, seed) for seed in chosen]
            for distribution, estimator in product(DISTRIBUTIONS, ESTIMATORS)}
    full = [_train(study, 'estimators-full', 'full', seed, {}) for seed in chosen]
    rows = [_row(*of, of_seeds) for of, of_seeds in runs.items()]
    study.report([_row(None, 'full attention', full), *rows], draw(runs))


def _train_sampled(study: Study, distribution: str, estimator: str, seed: int) -> Path:
    source = {'distribution': distribution, 'estimator': estimator,
              'clusters': CLUSTERS[study.scale]}
    return _train(study, f'{distribution}-{estimator}', 'sbm', seed,
                  {'source': {'init_args': source}})


def _train(study: Study, name: str, config: str, seed: int, encoder: dict) -> Path:
    scale = study.scale
    sizes = {'num_tokens': LENGTH[scale] + 1, 'max_length': LENGTH[scale]}
    return train(study, name, config, seed, DATA[scale], {**sizes, **encoder},
                 epochs=EPOCHS[scale], lr=RATE[scale])


def _row(distribution: str | None, estimator: str, runs: list[Path]) -> dict:
    return {'distribution': distribution, 'estimator': estimator, 'runs': len(runs),
            'lost their edges': sum(has_dead_heads(run) for run in runs),
            'solved': sum(read_summary(run)['accuracy'] >= 0.99 for run in runs), **means(runs)}


def draw(runs: dict[tuple[str, str], list[Path]]) -> Figure:
    """Draw the density and the loss of each run by step. Runs are given by distribution and
    estimator."""
    figure = Figure(figsize=(11, 6.5), layout='constrained')
    panels = figure.subplots(len(DISTRIBUTIONS), 2, sharex=True)
    for (density, loss), distribution in zip(panels, DISTRIBUTIONS):
        for number, estimator in enumerate(ESTIMATORS):
            style = {'color': f'C{number}', 'label': estimator, 'lw': 1}
            plot_histories(density, runs[distribution, estimator], DENSITY, 100, **style)
            plot_histories(loss, runs[distribution, estimator], 'train/loss', **style)
        density.set(ylabel=f'{distribution}: density, %', ylim=(0, 103))
        loss.set(ylabel='loss, nats', ylim=(0, None))
        for axes in (density, loss):
            axes.grid()
    for axes in panels[-1]:
        axes.set_xlabel('step')
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
    figure.suptitle('Repeated tokens need all edges: which gradient finds and keeps them?')
    return figure


if __name__ == '__main__':
    run_function(main)
