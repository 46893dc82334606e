r"""Pruning of pairs by learned importance, or at random (SparseBERT, Fig. 3).

    graphattn study pruning --scale small

The study thresholds the soft masks P of a pre-training (Sec. 3.1): the smallest 10 to 90 % of the
entries of each head are removed (Sec. 3.4). The pre-trained model is fine-tuned along the remaining
pairs, and along as many random pairs. The loss on masked tokens without such training is reported
as well. The comparison favours P, because the model was trained with P and never with the random
pairs.
"""

from collections.abc import Sequence

from experiments.papers.figures import curves
from experiments.papers.sparsebert.pruned import Pruned, better
from experiments.papers.sparsebert.texts import LOSS, Texts, text_study
from experiments.papers.study import Table, mean_and_spread
from experiments.runs.command_line import run_function

PAPER_PERCENT = tuple(range(10, 100, 10))
PERCENT = {'smoke': (50, 90), 'small': (30, 60, 90), 'paper': PAPER_PERCENT}
RANDOM_MASKS = 3  # number of random masks whose results are averaged


@text_study(1, 1, 3)
def main(texts: Texts, tasks: Sequence[str], seeds: range) -> Table:
    pruned = Pruned(texts)
    rows = [_row(LOSS, share, [pruned.loss(pruned.masks(share))],
                 [pruned.loss(pruned.masks(share, seed)) for seed in range(RANDOM_MASKS)])
            for share in (0, *PAPER_PERCENT)]
    for task in tasks:
        own = []
        for share in (0, *PERCENT[texts.study.scale]):
            by_p = [pruned.tuned(task, seed, share) for seed in seeds]
            # Without pruning, both ways to prune are the same.
            at_random = [pruned.tuned(task, seed, share, seed) for seed in seeds] if share else by_p
            own += [_row(column, share, [score[column] for score in by_p],
                         [score[column] for score in at_random]) for column in by_p[0]]
        rows += sorted(own, key=lambda row: row['task'])
    compared = [row['better here'] for row in rows if row['better in the paper'] == 'P']
    title = ('Pruning by learned importance P, and at random. The paper: P is better on every '
             f'task.\n{texts.about}')
    figure = curves(rows, 'sparsity, %', ['by P', 'at random'], title, panel='task',
                    ylabel='loss, or score in %')
    return Table([*rows, {
        'task': 'all', 'better here': f'P in {compared.count("P")} of {len(compared)}',
        'better in the paper': 'P in all'}], figure, texts.about)


def _row(task: str, percent: int, by_p: list[float], at_random: list[float]) -> dict:
    return {'task': task, 'sparsity, %': percent,
            **mean_and_spread('by P', by_p), **mean_and_spread('at random', at_random),
            'better here': better(task, {'P': by_p, 'random': at_random}) if percent else None,
            'better in the paper': 'P' if percent and task != LOSS else None}


if __name__ == '__main__':
    run_function(main)
