r"""Masks from one stage of training or from two (SparseBERT, Fig. 7).

    python -m experiments.studies.stages --scale small

One stage: masks are drawn and learned in pre-training (DAM, Sec. 4.1) and then frozen. Two stages:
soft masks are learned and then pruned (Sec. 3.4). Each model is fine-tuned along its masks; its
loss on masked tokens before that is there too. Two stages have any sparsity that is asked for, so
beside the paper's 80 to 95 % they are asked for that of each model of one stage.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary, spread
from experiments.studies.pruned_runs import PrunedRuns
from experiments.studies.study import ScaleName
from experiments.studies.text_runs import LAMBDAS, SMALL_LAMBDAS, scores, text_study
from graphattn.patterns import load_masks

TASKS = ('QNLI', 'MRPC')
WEIGHTS = {'smoke': LAMBDAS[-1:], 'small': SMALL_LAMBDAS, 'paper': LAMBDAS}
PERCENT = (80, 85, 90, 95)
SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
LOSS = 'masked tokens, loss'


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Fine-tune along masks that were learned in one stage and in two.

    Args:
        scale: How much of it.
        **kwargs: Those of :func:`text_study`.
    """
    runs, tasks, seeds = text_study('stages', scale, SEEDS[scale], TASKS, **kwargs)
    pruned = PrunedRuns(runs)
    dam = {f'DAM_{kind}, {weight}': runs.dam(kind, weight)
           for kind in ('u', 's') for weight in WEIGHTS[scale]}
    rows = []
    for masks, run in dam.items():
        percent = 100 * sparsity(run)
        rows.append(_row(LOSS, masks, percent, [read_summary(run)['mlm_loss']],
                         [pruned.loss(pruned.masks(percent))]))
        for task in tasks:
            rows += _scored(task, masks, percent,
                            [scores(runs.tuned(run, task, seed)) for seed in seeds],
                            [pruned.tuned(task, seed, percent) for seed in seeds])
    for percent in PERCENT:
        rows.append(_row(LOSS, None, percent, [], [pruned.loss(pruned.masks(percent))]))
        for task in tasks:
            rows += _scored(task, None, percent, [],
                            [pruned.tuned(task, seed, percent) for seed in seeds])
    rows.sort(key=lambda row: (row['task'] != LOSS, row['task']))
    compared = [row['better here'] for row in rows if row['better in the paper'] is not None]
    print(f'\n{runs.about}')
    runs.study.report([*rows, {
        'task': 'all', 'better here': f'one in {compared.count("one")} of {len(compared)}',
        'better in the paper': 'one in all'}], _draw(rows, runs.about))


def sparsity(run: Path) -> float:
    """Return the share of the pairs that the frozen masks of a pre-training leave out."""
    masks = load_masks(run / 'masks.npz')
    return 1 - statistics.mean(mask.build(mask.layout.size).density() for mask in masks)


def _scored(task: str, masks: str | None, percent: float, one: list[dict],
            two: list[dict]) -> list[dict]:
    return [_row(column, masks, percent, [score[column] for score in one],
                 [score[column] for score in two]) for column in two[0]]


def _row(task: str, masks: str | None, percent: float, one: list[float],
         two: list[float]) -> dict:
    row = {'task': task, 'one stage': masks, 'sparsity, %': percent,
           'one': statistics.mean(one) if one else None, 'one, spread': spread(one),
           'two': statistics.mean(two), 'two, spread': spread(two)}
    better = None
    if one:
        gain = row['one'] - row['two'] if task != LOSS else row['two'] - row['one']
        better = 'one' if gain > 0 else 'two' if gain < 0 else 'neither'
    return {**row, 'better here': better,
            'better in the paper': 'one' if one and task != LOSS else None}


def _draw(rows: list[dict], about: str) -> Figure:
    tasks = list(dict.fromkeys(row['task'] for row in rows))
    figure = Figure(figsize=(4.2 * len(tasks), 4), layout='constrained')
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        chosen = sorted((row for row in rows if row['task'] == task),
                        key=lambda row: row['sparsity, %'])
        _plot(axes, chosen, 'two', 'two stages: P, pruned', color='0.4', marker='.')
        for kind, colour in (('DAM_u', 'C0'), ('DAM_s', 'C1')):
            of_kind = [row for row in chosen if (row['one stage'] or '').startswith(kind)]
            _plot(axes, of_kind, 'one', f'one stage: {kind}', color=colour, marker='o', ls='none')
        axes.set(title=task, xlabel='sparsity, %', ylabel='' if task == LOSS else 'score, %')
        axes.grid()
    panels[0].legend()
    figure.suptitle(f'One stage of training masks, or two. The paper: one is better.\n{about}')
    return figure


def _plot(axes: Axes, rows: list[dict], stage: str, label: str, **style) -> None:
    axes.errorbar([row['sparsity, %'] for row in rows], [row[stage] for row in rows],
                  [row[f'{stage}, spread'] or 0. for row in rows], label=label, capsize=3, **style)


if __name__ == '__main__':
    run_function(main)
