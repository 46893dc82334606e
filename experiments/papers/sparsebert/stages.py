"""Masks that are learned in one stage or in two stages (SparseBERT, Fig. 7)."""

import statistics

from experiments.papers.figures import curves
from experiments.papers.sparsebert.pruned import Pruned, better
from experiments.papers.sparsebert.texts import LOSS, Texts, loss_of, scores
from experiments.papers.study import Table, mean_and_spread
from graphattn.patterns import load_masks

PERCENT = (80, 85, 90, 95)


def main(texts: Texts) -> Table:
    tasks, seeds = texts.asked(('QNLI', 'MRPC')), texts.each(1, 1, 3)
    pruned, rows = Pruned(texts), []
    one_stage = {f'DAM_{kind}, {weight}': texts.dam(kind, weight)
                 for kind in 'us' for weight in texts.lambdas('1e-1')}
    settings = [(name, run, 100 * (1 - statistics.mean(
        mask.build(mask.layout.size).density() for mask in load_masks(run / 'masks.npz'))))
        for name, run in one_stage.items()] + [(None, None, share) for share in PERCENT]
    for name, run, percent in settings:
        rows.append(_row(LOSS, name, percent, [loss_of(run)] if run else [],
                         [pruned.loss(pruned.masks(percent))]))
        for task in tasks:
            one = [scores(texts.tuned(run, task, seed)) for seed in seeds] if run else []
            two = [pruned.tuned(task, seed, percent) for seed in seeds]
            rows += [_row(column, name, percent, [score[column] for score in one],
                          [score[column] for score in two]) for column in two[0]]
    rows.sort(key=lambda row: (row['task'] != LOSS, row['task']))
    figure = curves(sorted(rows, key=lambda row: row['sparsity, %']), 'sparsity, %', ['one', 'two'],
                    'One stage of training masks, or two. The paper: one stage is better.\n'
                    f'{texts.about}', panel='task', ylabel='loss, or score in %')
    compared = [row['better here'] for row in rows if row['better in the paper'] is not None]
    return Table([*rows, {
        'task': 'all', 'better here': f'one in {compared.count("one")} of {len(compared)}',
        'better in the paper': 'one in all'}], figure, texts.about)


def _row(task: str, masks: str | None, percent: float, one: list[float],
         two: list[float]) -> dict:
    return {'task': task, 'one stage': masks, 'sparsity, %': percent,
            **mean_and_spread('one', one), **mean_and_spread('two', two),
            'better here': better(task, {'one': one, 'two': two}),
            'better in the paper': 'one' if one and task != LOSS else None}
