r"""Pruning of pairs by learned importance, or at random (SparseBERT, Fig. 3).

    python -m experiments.papers.sparsebert.pruning --scale small

The study thresholds the soft masks P of a pre-training (Sec. 3.1): the smallest 10 to 90 % of the
entries of each head are removed (Sec. 3.4). The pre-trained model is fine-tuned along the remaining
pairs, and along as many random pairs. The loss on masked tokens without such training is reported
as well. The comparison favours P, because the model was trained with P and never with the random
pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.papers.figures import curves
from experiments.papers.runs import mean_and_spread
from experiments.papers.sparsebert.pruned_runs import PrunedRuns
from experiments.papers.sparsebert.text_runs import text_study
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function

PAPER_PERCENT = tuple(range(10, 100, 10))
PERCENT = {'smoke': (50, 90), 'small': (30, 60, 90), 'paper': PAPER_PERCENT}
SEEDS = {'smoke': 1, 'small': 1, 'paper': 3}
LOSS = 'masked tokens, loss'
RANDOM_MASKS = 3  # number of random masks whose results are averaged


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Prune the pairs of a pre-trained model by P and at random, and fine-tune along the rest.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`text_study`.
    """
    runs, tasks, seeds = text_study('pruning', scale, SEEDS[scale], **kwargs)
    pruned = PrunedRuns(runs)
    percent = PERCENT[scale]
    rows = [_row(LOSS, share, [pruned.loss(pruned.masks(share))],
                 [pruned.loss(pruned.masks(share, seed)) for seed in range(RANDOM_MASKS)])
            for share in (0, *PAPER_PERCENT)]
    for task in tasks:
        rows += _fine_tuned(pruned, task, percent, seeds)
    compared = [row['better here'] for row in rows if row['better in the paper'] == 'P']
    rows.append({'task': 'all', 'better here': f'P in {compared.count("P")} of {len(compared)}',
                 'better in the paper': 'P in all'})
    title = ('Pruning by learned importance P, and at random. The paper: P is better on every '
             f'task.\n{runs.about}')
    figure = curves(rows[:-1], 'sparsity, %', ['by P', 'at random'], title, panel='task',
                    ylabel='loss, or score in %')
    runs.study.report(rows, figure, runs.about)


def _fine_tuned(pruned: PrunedRuns, task: str, percent: Sequence[int],
                seeds: range) -> list[dict]:
    rows = []
    for share in (0, *percent):
        by_p = [pruned.tuned(task, seed, share) for seed in seeds]
        # Without pruning, both ways to prune are the same.
        at_random = [pruned.tuned(task, seed, share, seed) for seed in seeds] if share else by_p
        rows += [_row(column, share, [score[column] for score in by_p],
                      [score[column] for score in at_random]) for column in by_p[0]]
    return sorted(rows, key=lambda row: row['task'])


def _row(task: str, percent: int, by_p: list[float], at_random: list[float]) -> dict:
    gain = statistics.mean(by_p) - statistics.mean(at_random)
    gain = -gain if task == LOSS else gain
    better = 'P' if gain > 0 else 'random' if gain < 0 else 'neither'
    return {'task': task, 'sparsity, %': percent,
            **mean_and_spread('by P', by_p), **mean_and_spread('at random', at_random),
            'better here': better if percent else None,
            'better in the paper': 'P' if percent and task != LOSS else None}


if __name__ == '__main__':
    run_function(main)
