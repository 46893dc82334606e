r"""Masks that are learned in one stage or in two stages (SparseBERT, Fig. 7).

    python -m experiments.papers.sparsebert.stages --scale small

In one stage, masks are sampled and learned in pre-training (DAM, Sec. 4.1) and then frozen. In two
stages, soft masks are learned and then pruned (Sec. 3.4). Each model is fine-tuned along its masks.
The loss on masked tokens before the fine-tuning is reported as well. Two stages allow any sparsity.
Besides the paper's 80 to 95 %, they are therefore run at the sparsity of each one-stage model.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from experiments.papers.figures import curves
from experiments.papers.runs import mean_and_spread
from experiments.papers.sparsebert.pruned_runs import PrunedRuns
from experiments.papers.sparsebert.text_runs import LAMBDAS, SMALL_LAMBDAS, scores, text_study
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary
from graphattn.patterns import load_masks

TASKS = ('QNLI', 'MRPC')
WEIGHTS = {'smoke': LAMBDAS[-1:], 'small': SMALL_LAMBDAS, 'paper': LAMBDAS}
PERCENT = (80, 85, 90, 95)
SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
LOSS = 'masked tokens, loss'


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Fine-tune along masks that were learned in one stage and in two stages.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`text_study`.
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
    runs.study.report([*rows, {
        'task': 'all', 'better here': f'one in {compared.count("one")} of {len(compared)}',
        'better in the paper': 'one in all'}], _draw(rows, runs.about), runs.about)


def sparsity(run: Path) -> float:
    """Return the fraction of the pairs that the frozen masks of a pre-training leave out."""
    masks = load_masks(run / 'masks.npz')
    return 1 - statistics.mean(mask.build(mask.layout.size).density() for mask in masks)


def _scored(task: str, masks: str | None, percent: float, one: list[dict],
            two: list[dict]) -> list[dict]:
    return [_row(column, masks, percent, [score[column] for score in one],
                 [score[column] for score in two]) for column in two[0]]


def _row(task: str, masks: str | None, percent: float, one: list[float],
         two: list[float]) -> dict:
    row = {'task': task, 'one stage': masks, 'sparsity, %': percent,
           **mean_and_spread('one', one), **mean_and_spread('two', two)}
    better = None
    if one:
        gain = row['one'] - row['two'] if task != LOSS else row['two'] - row['one']
        better = 'one' if gain > 0 else 'two' if gain < 0 else 'neither'
    return {**row, 'better here': better,
            'better in the paper': 'one' if one and task != LOSS else None}


def _draw(rows: list[dict], about: str) -> Figure:
    """Draw a curve for two stages, and a curve for each kind of one-stage masks."""
    by_stage = []
    for row in sorted(rows, key=lambda row: row['sparsity, %']):
        stages = {'two': 'two stages: P, pruned'}
        if row['one stage']:
            stages['one'] = f'one stage: {row["one stage"].partition(",")[0]}'
        by_stage += [{**row, 'stage': name, 'score': row[stage],
                      'score, spread': row[f'{stage}, spread']} for stage, name in stages.items()]
    return curves(by_stage, 'sparsity, %', ['score'], 'One stage of training masks, or two. The '
                  f'paper: one stage is better.\n{about}', panel='task', series='stage',
                  ylabel='loss, or score in %')


if __name__ == '__main__':
    run_function(main)
